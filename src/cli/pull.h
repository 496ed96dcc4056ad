// coppice pull: fetches a model to where 'coppice serve NAME' finds it.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

void add_pull(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
