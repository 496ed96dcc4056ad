#include "bandwidth.h"

#include "attend_block.h"
#include "stopwatch.h"

namespace coppice::bench {

std::vector<double> read_bandwidth(const HugeBuffer& arena, int n_threads, int repetitions) {
  constexpr std::size_t kAccumulators = 8;
  const FloatTag f;
  const auto* data = reinterpret_cast<const float*>(arena.data());
  const std::size_t lanes = hn::Lanes(f), stride = kAccumulators * lanes;
  const std::size_t strides = arena.size() / sizeof(float) / stride;
  std::vector<float> sinks(static_cast<std::size_t>(n_threads) * kLine);  // what is stored can't be optimised away
  const Samples samples = time_step(n_threads, repetitions, [&](int worker, Barrier&) {
    const auto n = static_cast<std::size_t>(n_threads), w = static_cast<std::size_t>(worker);
    Floats sums[kAccumulators];
    for (Floats& s : sums) s = hn::Zero(f);
    for (std::size_t i = strides * w / n; i < strides * (w + 1) / n; ++i) {
      for (std::size_t j = 0; j < kAccumulators; ++j) sums[j] = hn::Add(sums[j], load(data + i * stride + j * lanes));
    }
    for (std::size_t j = 1; j < kAccumulators; ++j) sums[0] = hn::Add(sums[0], sums[j]);
    hn::StoreU(sums[0], f, sinks.data() + w * kLine);
  });
  std::vector<double> rates;
  for (const double wall : samples.wall) rates.push_back(static_cast<double>(strides * stride * sizeof(float)) / wall);
  return rates;
}

}  // namespace coppice::bench
