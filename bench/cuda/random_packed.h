// Packed weights of random bytes, with scales that someone might use.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "matmul/cuda/quant_pack.h"
#include "support/cuda_step.h"

namespace coppice::bench {

/// Bytes of a packed matrix. REQUIRES: n_in is a multiple of what a chunk has.
inline std::size_t packed_bytes(matmul::QuantType type, int n_in, int n_out) {
  const matmul::cuda::ChunkForm form = matmul::cuda::chunk_form(type);
  return static_cast<std::size_t>((n_out + 15) / 16) * static_cast<std::size_t>(n_in / form.inputs) *
         static_cast<std::size_t>(form.bytes());
}

/// Whole chunks. Scales are 0.01: f16 that are NaN would be as fast, but no one's weights.
inline std::vector<std::byte> random_packed(matmul::QuantType type, std::size_t bytes, std::mt19937_64& random) {
  using matmul::QuantType;
  std::vector<std::byte> packed(bytes);
  if (type == QuantType::kBf16) {
    std::normal_distribution<float> normal(0.0F, 0.01F);
    std::vector<std::uint16_t> drawn(1 << 18);
    for (std::uint16_t& x : drawn) x = test::to_number(attention::cuda::Number::kBf16, normal(random));
    for (std::size_t i = 0; i < bytes; i += 2) std::memcpy(&packed[i], &drawn[i / 2 % drawn.size()], 2);
    return packed;
  }
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t x = random();
    std::memcpy(&packed[i], &x, sizeof x);
  }
  const matmul::cuda::ChunkForm form = matmul::cuda::chunk_form(type);
  const std::uint16_t kHundredth = type == QuantType::kMxfp4 ? 0x7878 : 0x211f;
  for (std::size_t chunk = 0; chunk < bytes; chunk += static_cast<std::size_t>(form.bytes())) {
    for (int i = 0; i < form.deltas; i += 2)
      std::memcpy(&packed[chunk + static_cast<std::size_t>(form.deltas_at() + i)], &kHundredth, sizeof kHundredth);
  }
  return packed;
}

}  // namespace coppice::bench
