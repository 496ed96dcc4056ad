// What share of a trace's prompt tokens the cache serves at several budgets: coppice's own cache, plain LRU, the offline
// optimum and a cache without end. Writes one JSON object.
//   traces_bench --trace FILE --budgets 1,2,5,10,25,50
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay.h"
#include "simulator.h"
#include "trace.h"

namespace coppice::bench {

namespace {

nlohmann::ordered_json measure(const Trace& trace, double percent, int block_size) {
  const auto budget = std::max(1, static_cast<std::int32_t>(trace.distinct * percent / 100));
  const Replayed ours = replay(trace, budget, block_size);
  const auto share = [&](std::int64_t blocks) {
    return static_cast<double>(blocks) / static_cast<double>(trace.blocks);
  };
  return {{"budget_percent", percent},
          {"budget_blocks", budget},
          {"lru", share(simulate(trace, budget, Rule::kLru))},
          {"coppice", static_cast<double>(ours.cached_tokens) / static_cast<double>(ours.prompt_tokens)},
          {"optimum", share(simulate(trace, budget, Rule::kOptimum))},
          {"refused", ours.refused},
          {"evictions", ours.evictions},
          {"processor_seconds", ours.processor_seconds}};
}

void run(const std::string& file, const std::vector<double>& budgets, int block_size) {
  const Trace trace = read_trace(file);
  nlohmann::ordered_json report = {{"trace", std::filesystem::path(file).stem().string()},
                                   {"requests", trace.requests.size()},
                                   {"blocks", trace.blocks},
                                   {"distinct_blocks", trace.distinct},
                                   {"tokens", trace.blocks * kTraceBlock},
                                   {"block_size", block_size},
                                   {"infinite", static_cast<double>(simulate(trace, trace.distinct, Rule::kLru)) /
                                                    static_cast<double>(trace.blocks)},
                                   {"rows", nlohmann::ordered_json::array()}};
  for (const double percent : budgets) report["rows"].push_back(measure(trace, percent, block_size));
  fmt::print("{}\n", report.dump(1));
}

}  // namespace

}  // namespace coppice::bench

int main(int argc, char** argv) {
  CLI::App app{"What share of a trace's prompt tokens the cache serves"};
  std::string file;
  std::vector<double> budgets = {1, 2, 5, 10, 25, 50};
  int block_size = 32;
  app.add_option("--trace", file, "one JSON object a line, with timestamp and hash_ids")->required();
  app.add_option("--budgets", budgets, "in per cent of the trace's distinct blocks")->delimiter(',');
  app.add_option("--block-size", block_size, "tokens in a block of the cache")->check(CLI::IsMember({8, 16, 32, 64}));
  CLI11_PARSE(app, argc, argv);
  try {
    coppice::bench::run(file, budgets, block_size);
  } catch (const std::exception& e) {
    fmt::print(stderr, "traces_bench: {}\n", e.what());
    return 1;
  }
}
