// How `--help` looks: each group of options with an example, and units as people write them.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// REQUIRES: before the commands are added, which take it over.
void set_help(CLI::App& app);

}  // namespace coppice::cli
