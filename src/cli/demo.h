// `coppice demo`: eight requests at once on one shared prefix, with sharing on and off, and the table of
// both.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// Adds the command to `app`; when it is chosen, parsing runs it and sets `exit_code`.
void add_demo(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
