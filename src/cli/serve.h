// `coppice serve`: loads a model and serves it.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// Adds the command to `app`; when it is chosen, parsing runs it and sets `exit_code`.
void add_serve(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
