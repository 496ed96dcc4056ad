#include "bandwidth.h"

#include <cstdint>
#include <cstring>

#include "stopwatch.h"

namespace coppice::bench {

std::vector<double> read_bandwidth(const HugeBuffer& arena, int n_threads, int repetitions) {
  constexpr std::size_t kLine = 64;
  const std::size_t lines = arena.size() / kLine;
  std::vector<std::uint64_t> sinks(static_cast<std::size_t>(n_threads) * kLine);  // what is used isn't optimised away
  const Samples samples = time_step(n_threads, repetitions, [&](int worker, Barrier&) {
    const auto n = static_cast<std::size_t>(n_threads), w = static_cast<std::size_t>(worker);
    std::uint64_t sums[kLine / sizeof(std::uint64_t)] = {};
    for (std::size_t i = lines * w / n; i < lines * (w + 1) / n; ++i) {
      std::uint64_t line[std::size(sums)];
      std::memcpy(line, arena.data() + i * kLine, kLine);
      for (std::size_t j = 0; j < std::size(sums); ++j) sums[j] += line[j];
    }
    for (const std::uint64_t sum : sums) sinks[w * kLine] += sum;
  });
  std::vector<double> rates;
  for (const double wall : samples.wall) rates.push_back(static_cast<double>(lines * kLine) / wall);
  return rates;
}

}  // namespace coppice::bench
