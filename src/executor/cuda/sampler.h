// Draws a token for each row of logits on the GPU. What to do is data in device memory, so a captured launch serves all rows.
//
// In this order, as on the CPU (sampling/params.h): mask, biases, penalties, temperature, top-k, top-p, min-p; each filter sees the
// distribution that the one before it left. Weights are whole numbers, 2^40 for the likeliest token; those below 1 are never drawn.
// So sums are exact, and what is drawn depends on logits, spec and counts alone, bit by bit.
//
// Plain pointers to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace coppice::executor::cuda {

/// What is added to a token's logit; minus infinity: it is never drawn. A spec names a token once.
struct TokenBias {
  std::int32_t token = 0;
  float bias = 0.0F;
};

struct SamplerSpec {
  float temperature = 1.0F;  ///< below kGreedy: the likeliest token, of equals the lowest id; no filters then
  std::int32_t top_k = 0;    ///< <= 0: off
  float top_p = 1.0F;        ///< 1: off
  float min_p = 0.0F;        ///< 0: off
  float repeat = 1.0F, frequency = 0.0F, presence = 0.0F;
  std::int32_t first_bias = 0, n_biases = 0;
  std::int32_t mask = -1;    ///< which of the masks; -1: none
  std::int32_t counts = -1;  ///< which of the counts; -1: none, and no penalties
  std::uint32_t unused = 0;
  std::uint64_t seed = 0, counter = 0;  ///< of the one random number that the row takes
};
inline constexpr float kGreedy = 1e-5F;

/// A token's count: how often it was drawn, and this bit if it is in the prompt.
inline constexpr std::uint32_t kInPrompt = 0x80000000;

struct SampleRows {
  int n_rows = 0, n_vocab = 0;
  const float* logits = nullptr;         ///< [n_rows][n_vocab]; stays as it is
  const SamplerSpec* specs = nullptr;    ///< [n_rows]
  const TokenBias* biases = nullptr;     ///< all specs'
  const std::uint32_t* masks = nullptr;  ///< [][(n_vocab + 31) / 32]: bit i % 32 of word i / 32 allows token i
  std::uint32_t* counts = nullptr;       ///< [][n_vocab]; the token that is drawn is counted
  float* edited = nullptr;               ///< [n_rows][n_vocab], scratch
  std::uint64_t* candidates = nullptr;   ///< [n_rows][candidate_room(n_vocab)], scratch
  std::int32_t* tokens = nullptr;        ///< [n_rows]; -1: no token is possible
};
constexpr std::size_t candidate_room(int n_vocab) {
  std::size_t n = 1;
  while (n < static_cast<std::size_t>(n_vocab)) n *= 2;
  return n;
}

/// nullptr or why not.
const char* launch(const SampleRows& args, CUstream_st* stream);

}  // namespace coppice::executor::cuda
