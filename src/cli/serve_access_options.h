// Options of `coppice serve`: network, keys, times, log, and a request's defaults.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

struct ServeOptions;

void add_access_option_groups(CLI::App& command, ServeOptions& options);

}  // namespace coppice::cli
