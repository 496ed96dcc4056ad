// `coppice generate`: what the options say, for man and for shells.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// The command "generate"; sets exit_code when it ran.
void add_generate(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
