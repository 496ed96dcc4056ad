// Times the attention kernel on steps of one layer and reports it against the machine's read bandwidth: time, bytes
// read per unique byte, share of the bound. The first and last row of every result are also checked against plain
// attention in double precision.
//   attention_bench --filter 8b/16k --simd AVX3_DL,AVX2 --threads 1,2 --csv figures.csv
//
// What is to be compared takes turns: in each round all formats, all instruction sets and the bandwidth itself are
// measured, and medians over all rounds are reported. So a change in what else the machine does meets all of them.
//
// Exit status: 1 if a result is wrong or its bytes can't be (memory_check.h), 2 if nothing could be measured.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/cpu/tree_attention.h"
#include "bandwidth.h"
#include "report.h"
#include "simd/target.h"
#include "stopwatch.h"

namespace coppice::bench {

namespace {

constexpr double kEnoughMultiplyAdds = 1e10;
constexpr double kTolerance = 1e-3;
constexpr int kSecondLooks = 5;  ///< at the bandwidth
constexpr std::size_t kQuickBytes = std::size_t{64} << 20;

struct Options {
  std::string filter, csv;
  std::vector<std::string> formats = {"f16"}, simd;
  std::vector<int> threads = {1, 2};
  int rounds = 3, repetitions = 3;
  bool quick = false, list = false;
};

/// As many layers as make the caches forget the first one, but no more work than needed for that.
std::size_t layers_to_run(const Step& step, std::size_t enough_bytes) {
  const auto work = static_cast<std::size_t>(kEnoughMultiplyAdds / step.c.multiply_adds());
  return std::min(step.layers.size(), std::max(step.c.layers_of(enough_bytes), work));
}

/// Adds one round to the row. Plan and schedule are made outside the time taken: a server keeps the plan, too, and
/// makes a schedule in some 1/1,000 of a step (`bookkeeping` of `coppice bench`).
void measure(Step& step, int repetitions, std::size_t enough_bytes, Row& row) {
  const test::AttentionCase& what = step.c.what;
  attention::SharePlanner planner(what.group);
  attention::TreeAttention attention(what.heads, what.block_size, row.threads);
  attention::TreeStep tree{.plan = &planner.plan(what.rows()), .schedule = {}};
  attention::make_schedule(*tree.plan, attention.cost_model(), tree.schedule);
  attention.prepare(tree.schedule);
  std::atomic<std::int32_t> next_job = 0;
  std::fill(step.out.begin(), step.out.end(), 0.0F);
  row.layers = layers_to_run(step, enough_bytes);
  row.samples.append(time_step(row.threads, repetitions, [&](int worker, Barrier& barrier) {
    for (std::size_t layer = 0; layer < row.layers; ++layer) {
      attention.partials(tree, {.pool = step.layers[layer], .q = step.q.data()}, next_job, worker, row.threads);
      barrier.wait();
      if (worker == 0) next_job = 0;
      attention.merge(tree, step.c.format, step.out.data(), what.n_rows(), worker, row.threads);
      barrier.wait();
    }
  }));
  row.bytes_read = attention.bytes_read() / (row.layers * static_cast<std::size_t>(repetitions + 1));
  if (row.error == 0) row.error = distance_from_reference(step, row.layers - 1);
}

template <class T>
std::vector<T> each_once(const std::vector<T>& all) {
  std::vector<T> once;
  for (const T& x : all) {
    if (std::ranges::count(once, x) == 0) once.push_back(x);
  }
  return once;
}

Verdict judge_row(const Row& row) {
  return judge({.unique = row.what.unique_bytes(),
                .read = row.bytes_read,
                .layers = row.layers,
                .seconds = row.best(),
                .bandwidth = row.best_bandwidth,
                .one_pass = row.what.one_pass()},
               beyond_caches(last_level_cache()));
}

/// Refuses names that this machine doesn't have: its figures would be another instruction set's.
std::vector<std::string> chosen_simd(const Options& options) {
  if (!simd::unheeded().empty()) throw std::runtime_error(fmt::format("COPPICE_SIMD={}", simd::unheeded()));
  if (options.simd.empty()) return {std::string(simd::target())};
  if (options.simd == std::vector<std::string>{"all"}) return {simd::targets().begin(), simd::targets().end()};
  for (const std::string& name : options.simd) {
    if (std::ranges::count(simd::targets(), name) != 0) continue;
    throw std::runtime_error(
        fmt::format("--simd {}: this machine has only {}", name, fmt::join(simd::targets(), ", ")));
  }
  return each_once(options.simd);
}

/// Cases of one load stand next to each other; only the format differs.
std::vector<std::vector<BenchCase>> chosen_loads(const Options& options) {
  std::vector<attention::KvFormat> formats;
  for (const std::string& name : each_once(options.formats)) {
    if (const auto format = attention::find_format(name)) formats.push_back(*format);  // the option knows no others
  }
  std::vector<std::vector<BenchCase>> loads;
  for (const BenchCase& c : all_cases(formats)) {
    if (c.name().find(options.filter) == std::string::npos) continue;
    if (loads.empty() || loads.back().front().what.name != c.what.name) loads.emplace_back();
    loads.back().push_back(c);
  }
  if (loads.empty()) throw std::runtime_error(fmt::format("no case's name contains \"{}\"", options.filter));
  return loads;
}

class Driver {
 public:
  Driver(const Options& options, std::vector<std::string> simd, std::size_t enough_bytes, std::size_t arena_bytes)
      : options_(options),
        simd_(std::move(simd)),
        threads_(each_once(options.threads)),
        enough_bytes_(enough_bytes),
        arena_(arena_bytes) {
    fill_f16(arena_);
  }

  std::vector<Row> compare(const std::vector<BenchCase>& load) {
    std::vector<Step> steps;
    for (const BenchCase& c : load) steps.push_back(make_step(c, arena_));
    std::vector<Row> rows;
    std::map<int, std::vector<double>> bandwidth;
    for (int round = 0; round < options_.rounds; ++round) {
      std::size_t next = 0;
      for (const int threads : threads_) {
        const auto b = read_bandwidth(arena_, threads, options_.repetitions);
        bandwidth[threads].insert(bandwidth[threads].end(), b.begin(), b.end());
        for (Step& step : steps) {
          for (const std::string& simd : simd_) {
            if (round == 0) rows.push_back({.what = step.c, .simd = simd, .threads = threads});
            simd::use(simd);
            measure(step, options_.repetitions, enough_bytes_, rows[next++]);
          }
        }
      }
    }
    for (Row& row : rows) check(row, bandwidth[row.threads]);
    return rows;
  }

 private:
  /// Others may have slowed down the yardstick: it is looked at again before a row is called impossible.
  void check(Row& row, const std::vector<double>& bandwidth) const {
    row.bandwidth = median(bandwidth);
    row.best_bandwidth = std::ranges::max(bandwidth);
    row.verdict = judge_row(row);
    for (int i = 0; i < kSecondLooks && row.verdict == Verdict::kTooMany; ++i) {
      const auto again = read_bandwidth(arena_, row.threads, options_.repetitions);
      row.best_bandwidth = std::max(row.best_bandwidth, std::ranges::max(again));
      row.verdict = judge_row(row);
    }
  }

  const Options& options_;
  std::vector<std::string> simd_;
  std::vector<int> threads_;
  std::size_t enough_bytes_;
  HugeBuffer arena_;
};

/// Says what is wrong with the row; false: nothing.
bool complain(const Row& row) {
  const bool wrong = !(row.error < kTolerance);  // NaN is wrong, too
  if (wrong) fmt::print(stderr, "{} {}: wrong by {}\n", row.what.name(), row.simd, row.error);
  if (impossible(row.verdict)) {
    fmt::print(stderr, "{} {}: {} bytes counted for {} that differ, in {:.1f} us at {:.1f} GB/s: impossible\n",
               row.what.name(), row.simd, row.bytes_read, row.what.unique_bytes(), 1e6 * row.best(),
               row.best_bandwidth / 1e9);
  }
  return wrong || impossible(row.verdict);
}

/// Returns the exit status.
int run(const Options& options) {
  std::vector<std::string> simd = chosen_simd(options);
  const auto loads = chosen_loads(options);
  if (options.list) {
    for (const auto& load : loads) {
      for (const BenchCase& c : load) fmt::print("{}\n", c.name());
    }
    return 0;
  }
  Report report(options.csv);
  const std::size_t enough = options.quick ? kQuickBytes : beyond_caches(last_level_cache());
  std::size_t arena = 0;
  for (const auto& load : loads) arena = std::max(arena, arena_bytes(load, enough, available_memory() / 4));
  Driver driver(options, std::move(simd), enough, arena);
  bool wrong = false;
  for (const auto& load : loads) {
    for (const Row& row : driver.compare(load)) {
      report.add(row);
      wrong |= complain(row);
    }
  }
  return wrong ? 1 : 0;
}

}  // namespace
}  // namespace coppice::bench

int main(int argc, char** argv) {
  coppice::bench::Options options;
  CLI::App app("The attention kernel on steps of one layer");
  app.add_option("--filter", options.filter, "only cases whose name contains this");
  app.add_option("--format", options.formats, "KV formats: f16, int8, turbo4")
      ->delimiter(',')
      ->check(CLI::IsMember({"f16", "int8", "turbo4"}));
  app.add_option("--simd", options.simd, "instruction sets, or all that this machine has; else the best one")
      ->delimiter(',');
  app.add_option("--threads", options.threads, "numbers of threads")->delimiter(',')->check(CLI::Range(1, 256));
  app.add_option("--csv", options.csv, "also write all figures to this file");
  app.add_option("--rounds", options.rounds, "turns of everything that is compared")->check(CLI::Range(1, 1000));
  app.add_option("--repetitions", options.repetitions, "in each round, after a warm-up")->check(CLI::Range(1, 1000));
  app.add_flag("--quick", options.quick, "small samples: results and counts are checked, times say nothing");
  app.add_flag("--list", options.list, "name the cases that would run and stop");
  CLI11_PARSE(app, argc, argv);
  try {
    return coppice::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "attention_bench: {}\n", error.what());
    return 2;
  }
}
