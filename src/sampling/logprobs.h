// Log-probabilities of the raw distribution: log-softmax of the logits as the model gave them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
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

  /// Of a token in the logits read last, which must be as they were: 1 + how many are likelier.
  std::int32_t rank(kv::Token token) const { return scan_.rank(token); }

 private:
  LogitScan scan_;
  std::vector<Candidate> top_;
};

/// The entry of `chosen` among what could be drawn: Sampler::distribution(), with the `n_top` likeliest of it.
/// REQUIRES: chosen is there.
LogprobEntry read_drawn(std::span<const Candidate> drawable, kv::Token chosen, int n_top,
                        const text::Vocabulary& vocabulary);

/// A prompt's tokens by the words of a vocabulary.
class VocabularyScorer final : public Scorer {
 public:
  explicit VocabularyScorer(std::shared_ptr<const text::Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}

  /// REQUIRES: as LogprobReader::read().
  PromptToken score(std::span<const float> logits, kv::Token next, int n_top) override;
  PromptToken name(kv::Token token) override;

 private:
  std::shared_ptr<const text::Vocabulary> vocabulary_;
  LogprobReader reader_;
};

}  // namespace coppice::sampling
