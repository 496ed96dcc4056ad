// Draws a token for each row of logits on the GPU. What to do is data in device memory.
//
// In this order, as on the CPU (sampling/params.h): mask, biases, penalties, temperature, top-k, top-p, min-p; each
// filter sees the distribution that the one before it left. Weights are whole numbers, 2^40 for the likeliest token;
// those below 1 are never drawn. So sums are exact, and what is drawn depends on logits and spec alone, bit by bit. A
// number means the same token as on the CPU (sampling/sampler.h), but for its sums' rounding: without filters tokens
// lie in the order of their ids, else the likeliest first.
//
// Plain pointers to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/gpu.h"
#include "sampling/sampler_spec.h"

namespace coppice::executor::cuda {

using coppice::cuda::Gpu;

/// A sampling::SamplerSpec whose lists lie in arrays that all rows share.
struct SampleRow {
  float temperature = 1.0F;
  std::int32_t top_k = 0;
  float top_p = 1.0F, min_p = 0.0F;
  float repeat = 1.0F, frequency = 0.0F, presence = 0.0F;
  std::int32_t n_vocab = 0;                    ///< at most the row's width
  std::int32_t logits = 0;                     ///< which row of them
  std::int32_t first_bias = 0, n_biases = 0;   ///< a token once
  std::int32_t first_count = 0, n_counts = 0;  ///< a token once
  std::int32_t mask = -1;                      ///< which of the masks; -1: none
  std::uint64_t seed = 0, counter = 0;
};

struct SampleRows {
  int n_rows = 0, n_vocab = 0;
  const float* logits = nullptr;                ///< [][n_vocab]; stays as it is
  const SampleRow* rows = nullptr;              ///< [n_rows]
  const sampling::TokenBias* biases = nullptr;  ///< all rows'
  const sampling::TokenCount* counts = nullptr;
  const std::int32_t* masks = nullptr;  ///< [][(n_vocab + 31) / 32]: bit i % 32 of word i / 32 allows token i
  float* edited = nullptr;              ///< [n_rows][n_vocab], scratch
  std::uint64_t* candidates = nullptr;  ///< [n_rows][candidate_room(n_vocab)], scratch
  std::int32_t* tokens = nullptr;       ///< [n_rows]; -1: no token is possible
};
constexpr std::size_t candidate_room(int n_vocab) {
  std::size_t n = 1;
  while (n < static_cast<std::size_t>(n_vocab)) n *= 2;
  return n;
}

/// nullptr or why not.
const char* launch(const SampleRows& args, const Gpu& gpu);

}  // namespace coppice::executor::cuda
