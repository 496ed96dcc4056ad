// `coppice models`: the models of this machine, and whether they can be served.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// Adds the command to `app`; when it is chosen, parsing runs it and sets `exit_code`.
void add_models(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
