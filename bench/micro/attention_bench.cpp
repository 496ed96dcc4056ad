// Times attention backends on steps of one layer and reports them against the machine's read bandwidth: time, bytes read per
// unique byte, share of the bound. Every result is also checked against plain attention in double precision.
//   attention_bench --filter 8b/16k --backend fused --threads 1,2 --csv figures.csv
//
// What is to be compared takes turns: in each round both orders, all formats, all backends and the bandwidth itself are
// measured, and medians over all rounds are reported. So a change in what else the machine does meets all of them.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "backend.h"
#include "bandwidth.h"
#include "block_loop.h"
#include "report.h"
#include "stopwatch.h"
#include "tree_backend.h"

namespace coppice::bench {

std::vector<std::unique_ptr<Backend>> make_backends(const BackendOptions& options) {
  std::vector<std::unique_ptr<Backend>> all;
  for (const Path path : {Path::kFused, Path::kFusedAlone, Path::kGather, Path::kGatherEach, Path::kCopy}) {
    all.push_back(make_block_loop(path, options));
  }
  all.push_back(make_tree_backend());
  return all;
}

namespace {

constexpr std::size_t kArenaBytes = std::size_t{1} << 30;
constexpr std::size_t kEnoughBytes = std::size_t{256} << 20;  ///< many times any last-level cache's share of a core
constexpr double kEnoughMultiplyAdds = 1e10;
constexpr double kTolerance = 1e-3;

struct Options {
  std::string filter, backend, csv;
  std::vector<std::string> formats = {"f16"};
  std::vector<int> threads = {1, 2};
  int rounds = 3, repetitions = 3;
  bool small_pages = false, no_prefetch = false, list = false;
};

/// As many layers as make the caches forget the first one, but no more work than needed for that.
std::size_t layers_to_run(const Step& step) {
  const auto enough = kEnoughBytes / step.c.unique_bytes() + 1;
  const auto work = static_cast<std::size_t>(kEnoughMultiplyAdds / step.c.multiply_adds());
  return std::min(step.layers.size(), std::max(enough, work));
}

/// Adds one round to the row.
void measure(Backend& backend, Step& step, int repetitions, Row& row) {
  backend.prepare(step, row.threads);
  std::fill(step.out.begin(), step.out.end(), 0.0F);
  row.layers = layers_to_run(step);
  const int phases = backend.phases();
  row.samples.append(time_step(row.threads, repetitions, [&](int worker, Barrier& barrier) {
    for (std::size_t layer = 0; layer < row.layers; ++layer) {
      for (int phase = 0; phase < phases; ++phase) {
        backend.run(layer, phase, worker);
        if (phases > 1) barrier.wait();
      }
    }
  }));
  const auto runs = row.layers * static_cast<std::size_t>(repetitions + 1);
  const Traffic traffic = backend.traffic();
  row.traffic = {traffic.read / runs, traffic.written / runs};
  if (row.error == 0 && backend.attends()) row.error = distance_from_reference(step, row.layers - 1);
}

/// Cases of one load stand next to each other; only the order or the format differs.
std::vector<std::vector<BenchCase>> chosen_loads(const Options& options) {
  std::vector<attention::KvFormat> formats;
  for (const std::string& name : options.formats) formats.push_back(*attention::find_format(name));
  std::vector<std::vector<BenchCase>> loads;
  for (const BenchCase& c : all_cases(formats)) {
    if (c.name().find(options.filter) == std::string::npos) continue;
    if (loads.empty() || loads.back().front().what.name != c.what.name) loads.emplace_back();
    loads.back().push_back(c);
  }
  return loads;
}

class Driver {
 public:
  Driver(const Options& options, std::size_t arena_bytes)
      : options_(options),
        arena_(arena_bytes, !options.small_pages),
        backends_(make_backends({.huge_pages = !options.small_pages, .prefetch = !options.no_prefetch})) {
    fill_f16(arena_);
  }

  std::vector<Row> compare(const std::vector<BenchCase>& load) {
    std::vector<Step> steps;
    for (const BenchCase& c : load) steps.push_back(make_step(c, arena_));
    std::vector<Row> rows;
    std::map<int, std::vector<double>> bandwidth;
    for (int round = 0; round < options_.rounds; ++round) {
      for (const int threads : options_.threads) {
        const auto b = read_bandwidth(arena_, threads, options_.repetitions);
        bandwidth[threads].insert(bandwidth[threads].end(), b.begin(), b.end());
      }
      std::size_t next = 0;
      for (const auto& backend : backends_) {
        if (!options_.backend.empty() && options_.backend != backend->name()) continue;
        for (const int threads : options_.threads) {
          for (Step& step : steps) {
            if (!backend->supports(step.c)) continue;
            if (round == 0) rows.push_back({.what = step.c, .backend = backend->name(), .threads = threads});
            measure(*backend, step, options_.repetitions, rows[next++]);
          }
        }
      }
    }
    for (Row& row : rows) row.bandwidth = median(bandwidth[row.threads]);
    return rows;
  }

 private:
  const Options& options_;
  HugeBuffer arena_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

/// Returns the number of wrong results.
int run(const Options& options) {
  const auto loads = chosen_loads(options);
  std::size_t arena_bytes = kArenaBytes;
  for (const auto& load : loads) {
    arena_bytes = std::max(arena_bytes, load.front().pool_bytes());
  }
  Driver driver(options, arena_bytes);
  Report report(options.csv);
  int wrong = 0;
  for (const auto& load : loads) {
    for (const Row& row : driver.compare(load)) {
      report.add(row);
      if (row.error < kTolerance) continue;
      fmt::print(stderr, "{} {}: wrong by {}\n", row.what.name(), row.backend, row.error);
      ++wrong;
    }
  }
  return wrong;
}

}  // namespace
}  // namespace coppice::bench

int main(int argc, char** argv) {
  coppice::bench::Options options;
  CLI::App app("Attention backends on steps of one layer");
  app.add_option("--filter", options.filter, "only cases whose name contains this");
  app.add_option("--backend", options.backend, "only this backend");
  app.add_option("--format", options.formats, "KV formats: f16, int8, turbo4")
      ->delimiter(',')
      ->check(CLI::IsMember({"f16", "int8", "turbo4"}));
  app.add_option("--threads", options.threads, "numbers of threads")->delimiter(',')->check(CLI::Range(1, 256));
  app.add_option("--csv", options.csv, "also write all figures to this file");
  app.add_option("--rounds", options.rounds, "turns of everything that is compared")->check(CLI::Range(1, 1000));
  app.add_option("--repetitions", options.repetitions, "in each round, after a warm-up")->check(CLI::Range(1, 1000));
  app.add_flag("--small-pages", options.small_pages, "no huge pages");
  app.add_flag("--no-prefetch", options.no_prefetch, "don't fetch the next block ahead");
  app.add_flag("--list", options.list, "name the cases and stop");
  CLI11_PARSE(app, argc, argv);
  if (!options.list) return coppice::bench::run(options) == 0 ? 0 : 1;
  for (const auto& load : coppice::bench::chosen_loads(options)) {
    for (const auto& c : load) fmt::print("{}\n", c.name());
  }
  return 0;
}
