// SamplerSpec: how the next token of one row is drawn, as plain data: for an executor whose device draws.
//
// In this order, as in params.h: mask, biases, penalties, temperature, top-k, top-p, min-p.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/types.h"

namespace coppice::sampling {

inline constexpr float kGreedyTemperature = 1e-5F;

/// What is added to a token's logit; minus infinity: it is never drawn.
struct TokenBias {
  kv::Token token = 0;
  float bias = 0;
  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

/// What penalties have to know of a token.
struct TokenCount {
  kv::Token token = 0;
  std::int32_t times = 0;  ///< drawn
  bool in_prompt = false;
};

struct SamplerSpec {
  float temperature = 1;   ///< below kGreedyTemperature: the likeliest token, of equals the lowest id; no filters then
  std::int32_t top_k = 0;  ///< <= 0: off
  float top_p = 1;         ///< 1: off
  float min_p = 0;         ///< 0: off
  float repeat = 1, frequency = 0, presence = 0;
  std::int32_t n_vocab = 0;        ///< tokens from this id on are never drawn
  std::vector<TokenBias> biases;   ///< ascending, a token once
  std::vector<TokenCount> counts;  ///< a token once; empty while no penalty is on
  std::vector<std::int32_t> mask;  ///< bit i % 32 of word i / 32 allows token i; empty: all are allowed
  std::uint64_t seed = 0,
                counter = 0;  ///< of philox_64(), whose number decides: the same row draws the same token again
};

}  // namespace coppice::sampling
