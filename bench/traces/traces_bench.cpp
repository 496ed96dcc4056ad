// What share of a trace's prompt tokens the cache serves at several budgets: coppice's own cache, plain LRU, the
// offline optimum and a cache without end. Writes one JSON object.
//   traces_bench FILE     one JSON object a line, with timestamp and hash_ids
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "replay.h"
#include "simulator.h"
#include "trace.h"

namespace coppice::bench {

namespace {

constexpr int kBlockSize = 32;
constexpr int kBudgets[] = {1, 2, 5, 10, 25, 50};  // in per cent of the trace's different blocks
constexpr int kPoolBesideDisk = 2, kDisk = 20;     // likewise

std::int32_t part_of(const Trace& trace, int percent) {
  return std::max(1, static_cast<std::int32_t>(std::int64_t{trace.distinct} * percent / 100));
}

nlohmann::ordered_json measure(const Trace& trace, int percent) {
  const std::int32_t budget = part_of(trace, percent);
  const Replayed ours = replay(trace, budget, kBlockSize);
  if (ours.refused > 0) {
    throw std::runtime_error(fmt::format("{} requests do not fit into {} blocks", ours.refused, budget));
  }
  const auto share = [&](std::int64_t blocks) {
    return static_cast<double>(blocks) / static_cast<double>(trace.blocks);
  };
  return {{"budget_percent", percent},
          {"budget_blocks", budget},
          {"lru", share(simulate(trace, budget, Rule::kLru))},
          {"coppice", static_cast<double>(ours.cached_tokens) / static_cast<double>(ours.prompt_tokens)},
          {"optimum", share(simulate(trace, budget, Rule::kOptimum))},
          {"processor_seconds", ours.processor_seconds}};
}

/// A small pool beside a large disk, with both rules of what goes there.
nlohmann::ordered_json measure_tier(const Trace& trace, bool all_evicted) {
  const Replayed got = replay(trace, part_of(trace, kPoolBesideDisk), kBlockSize,
                              Beside{.budget = part_of(trace, kDisk), .all_evicted = all_evicted});
  const auto share = [&](std::int64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(got.prompt_tokens);
  };
  return {{"pool_percent", kPoolBesideDisk},    {"disk_percent", kDisk},
          {"all_evicted", all_evicted},         {"cached", share(got.cached_tokens)},
          {"loaded", share(got.loaded_tokens)}, {"stored", share(got.stored_tokens)}};
}

void run(const std::string& file) {
  const Trace trace = read_trace(file);
  nlohmann::ordered_json report = {{"trace", std::filesystem::path(file).stem().string()},
                                   {"requests", trace.requests.size()},
                                   {"blocks", trace.blocks},
                                   {"distinct_blocks", trace.distinct},
                                   {"tokens", trace.blocks * kTraceBlock},
                                   {"infinite", static_cast<double>(simulate(trace, trace.distinct, Rule::kLru)) /
                                                    static_cast<double>(trace.blocks)},
                                   {"rows", nlohmann::ordered_json::array()}};
  for (const int percent : kBudgets) report["rows"].push_back(measure(trace, percent));
  for (const bool all_evicted : {false, true}) report["tiers"].push_back(measure_tier(trace, all_evicted));
  fmt::print("{}\n", report.dump(1));
}

}  // namespace

}  // namespace coppice::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: traces_bench FILE\n", stderr);
    return 2;
  }
  try {
    coppice::bench::run(argv[1]);
  } catch (const std::exception& e) {
    fmt::print(stderr, "traces_bench: {}\n", e.what());
    return 1;
  }
}
