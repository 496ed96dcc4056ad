// What a KV format costs in quality: the same text, teacher-forced, through two executors of one model, and how far
// apart their predictions are at every position.
#pragma once

#include <cstdint>
#include <span>

#include "executor/executor.h"

namespace coppice::cli {

struct Quality {
  std::int64_t predictions = 0;
  double perplexity_before = 0;  ///< of the text, by the reference
  double perplexity = 0;         ///< by the executor under test
  double kl_mean = 0;            ///< Kullback-Leibler divergence of its predictions from the reference's, nats
  double kl_p99 = 0;
  double same_top = 0;  ///< share of positions at which both think the same token most likely
};

/// Cuts the text into windows of `window` tokens, each fed in chunks of `chunk` to an empty sequence; every position
/// but a window's last predicts the token behind it. A rest shorter than a window is left out. REQUIRES: the same
/// model; both pools hold a window; both take chunks of that many rows.
Quality compare_quality(executor::Executor& reference, executor::Executor& tested, std::span<const kv::Token> text,
                        int window, int chunk);

}  // namespace coppice::cli
