#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace coppice::bench {

Report::Report(const std::string& csv_path) {
  if (!csv_path.empty()) {
    csv_ = std::fopen(csv_path.c_str(), "w");
    if (csv_ == nullptr) throw std::runtime_error("cannot write " + csv_path);
    fmt::print(
        csv_,
        "case,format,sequences,rows,n_head,n_kv_head,head_dim,simd,threads,layers,samples,wall_us,best_us,cpu_us,"
        "unique_bytes,read_bytes,unique_gb_per_s,bandwidth_gb_per_s,share,error,check\n");
  }
  fmt::print("{:<49} {:<6} {:<8} {:>2} {:>10} {:>10} {:>10} {:>8} {:>6} {:>6} {:>6} {:>5}  {}\n", "case", "KV", "SIMD",
             "th", "wall us", "best us", "cpu us", "uniq MB", "read x", "unique", "GB/s", "share", "check");
}

Report::~Report() {
  if (csv_ != nullptr) std::fclose(csv_);
}

double Row::best() const {
  return *std::ranges::min_element(samples.wall) / static_cast<double>(layers);
}

void Report::add(const Row& row) {
  const BenchCase& c = row.what;
  const double per_layer_us = 1e6 / static_cast<double>(row.layers);
  const double wall = median(row.samples.wall) * per_layer_us, cpu = median(row.samples.cpu) * per_layer_us;
  const double best = 1e6 * row.best();
  const auto unique = static_cast<double>(c.unique_bytes()), read = static_cast<double>(row.bytes_read);
  const double rate = unique / wall / 1e3;  // GB/s
  const double share = rate * 1e9 / row.bandwidth;
  fmt::print(
      "{:<49} {:<6} {:<8} {:>2} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.2f} {:>6.2f} {:>6.1f} {:>6.1f} {:>5.2f}  {}\n",
      c.what.name, format_name(c.format), row.simd, row.threads, wall, best, cpu, unique / 1e6, read / unique, rate,
      row.bandwidth / 1e9, share, verdict_name(row.verdict));
  std::fflush(stdout);
  if (csv_ == nullptr) return;
  const attention::HeadShape& heads = c.what.heads;
  fmt::print(csv_, "\"{}\",{},{},{},{},{},{},{},{},{},{},{:.2f},{:.2f},{:.2f},{},{},{:.2f},{:.2f},{:.3f},{:.1e},{}\n",
             c.what.name, format_name(c.format), c.what.sequences.size(), c.what.n_rows(), heads.n_head,
             heads.n_kv_head, heads.head_dim, row.simd, row.threads, row.layers, row.samples.wall.size(), wall, best,
             cpu, c.unique_bytes(), row.bytes_read, rate, row.bandwidth / 1e9, share, row.error,
             verdict_name(row.verdict));
  std::fflush(csv_);
}

}  // namespace coppice::bench
