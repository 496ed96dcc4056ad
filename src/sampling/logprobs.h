// Log-probabilities of the raw distribution: log-softmax of the logits as the model gave them.
#pragma once

#include <span>
#include <vector>

#include "sampling/generation.h"
#include "sampling/logit_scan.h"
#include "text/vocabulary.h"

namespace coppice::sampling {

/// Not thread safe: it keeps its scratch memory from token to token.
class LogprobReader {
 public:
  /// The entry of `chosen` with the `n_top` likeliest tokens. Tokens' bytes show special tokens' text.
  /// logits: [n_vocab or more]; ids beyond the vocabulary have no share in the distribution.
  /// REQUIRES: chosen < logits.size(), vocabulary.size().
  LogprobEntry read(std::span<const float> logits, kv::Token chosen, int n_top, const text::Vocabulary& vocabulary);

 private:
  LogitScan scan_;
  std::vector<Candidate> top_;
};

}  // namespace coppice::sampling
