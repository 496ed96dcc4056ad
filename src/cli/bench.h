// `coppice bench`: the benchmarks of cache, scheduler and executor inside this process; JSON on standard output.
#pragma once

namespace CLI {
class App;
}

namespace coppice::cli {

/// Adds the command to `app`; when it is chosen, parsing runs it and sets `exit_code`.
void add_bench(CLI::App& app, int& exit_code);

}  // namespace coppice::cli
