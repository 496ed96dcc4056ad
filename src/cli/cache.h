// `coppice cache`: lists, checks and prunes a folder of --kv-dir.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// Adds the command to `app`; when it is chosen, parsing runs it and sets `exit_code`.
void add_cache(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
