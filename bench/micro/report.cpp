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
        "case,order,format,sequences,rows,n_head,n_kv_head,head_dim,backend,threads,layers,samples,wall_us,best_us,cpu_"
        "us,unique_bytes,"
        "read_bytes,written_bytes,moved_gb_per_s,unique_gb_per_s,bandwidth_gb_per_s,share,error,check\n");
  }
  fmt::print("{:<49} {:<6} {:<11} {:>2} {:>10} {:>10} {:>10} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>5}\n", "case", "KV",
             "backend", "th", "wall us", "best us", "cpu us", "uniq MB", "read x", "writ x", "moved", "unique", "GB/s",
             "share");
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
  const auto unique = static_cast<double>(c.unique_bytes());
  const auto read = static_cast<double>(row.traffic.read), written = static_cast<double>(row.traffic.written);
  const double moved_rate = (read + written) / wall / 1e3, unique_rate = unique / wall / 1e3;  // GB/s
  const double share = unique_rate * 1e9 / row.bandwidth;
  fmt::print(
      "{:<49} {:<6} {:<11} {:>2} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.2f} {:>6.2f} {:>6.2f} {:>6.1f} {:>6.1f} {:>6.1f} "
      "{:>5.2f}\n",
      c.name(), format_name(c.format), row.backend, row.threads, wall, best, cpu, unique / 1e6, read / unique,
      written / unique, moved_rate, unique_rate, row.bandwidth / 1e9, share);
  if (row.verdict == Verdict::kInCache) {
    fmt::print("  ^ {:.0f} MB in all, which caches may hold: the time is not judged\n",
               unique * static_cast<double>(row.layers) / 1e6);
  }
  std::fflush(stdout);
  if (csv_ == nullptr) return;
  fmt::print(
      csv_,
      "\"{}\",{},{},{},{},{},{},{},{},{},{},{},{:.2f},{:.2f},{:.2f},{},{},{},{:.2f},{:.2f},{:.2f},{:.3f},{:.1e},{}\n",
      c.what.name, order_name(c.order), format_name(c.format), c.what.sequences.size(), c.what.n_rows(),
      c.what.heads.n_head, c.what.heads.n_kv_head, c.what.heads.head_dim, row.backend, row.threads, row.layers,
      row.samples.wall.size(), wall, best, cpu, c.unique_bytes(), row.traffic.read, row.traffic.written, moved_rate,
      unique_rate, row.bandwidth / 1e9, share, row.error, verdict_name(row.verdict));
  std::fflush(csv_);
}

}  // namespace coppice::bench
