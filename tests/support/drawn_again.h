// For tests of executors that draw tokens: draws the same tokens again on the host, from logits of an executor that is
// asked row by row.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "executor/executor.h"
#include "sampling/sampler.h"

namespace coppice::test {

/// Greedy, or with some of the filters and penalties.
std::shared_ptr<const sampling::SamplingParams> random_params(std::mt19937_64& random);

/// A sampler of a text behind `prompt`.
sampling::Sampler make_sampler(std::shared_ptr<const sampling::SamplingParams> params, std::uint64_t seed,
                               std::span<const kv::Token> prompt, std::int32_t n_vocab);

/// Where texts part: rounding differs between batches, so a number falls on the other side of a border now and then.
struct DrawnAgain {
  std::int64_t tokens = 0, others = 0;

  /// `first`: the text's sampler before its first token. Logits come from `executor`, whose pool holds the text.
  void check(executor::Executor& executor, std::span<const kv::Token> prompt, std::span<const kv::Token> out,
             sampling::Sampler first);
  bool good() const { return others * 50 <= tokens; }
};

}  // namespace coppice::test
