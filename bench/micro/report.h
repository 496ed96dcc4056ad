// attention_bench's table: readable lines on standard output, and all figures as CSV.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "bench_case.h"
#include "memory_check.h"
#include "stopwatch.h"

namespace coppice::bench {

/// One case on one instruction set with so many threads.
struct Row {
  BenchCase what;
  std::string_view simd;
  int threads = 0;
  std::size_t layers = 0;  ///< of a sample
  Samples samples;
  std::uint64_t bytes_read = 0;  ///< of keys and values, in one layer, as the kernel counts them
  double bandwidth = 0;          ///< bytes per second, as many threads: the median
  double best_bandwidth = 0;     ///< the highest
  double error = 0;              ///< distance_from_reference()
  Verdict verdict = Verdict::kPossible;

  /// Seconds of one layer.
  double best() const;
};

/// Owns the CSV file. Times are medians, of one layer; `best` is the shortest wall time, for shared machines. `share`
/// is the least time that memory allows (unique bytes over bandwidth), over the wall time.
class Report {
 public:
  explicit Report(const std::string& csv_path);  ///< empty: no CSV
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void add(const Row& row);

 private:
  std::FILE* csv_ = nullptr;
};

}  // namespace coppice::bench
