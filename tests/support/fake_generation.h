// FakeGeneration: a sample whose tokens are a function of the logits it sees, its seed and how many tokens it
// has given: a Generation that was lost, doubled or handed another sample's logits shows as a wrong token. It
// holds its latest token's text back, as a detokenizer may, and spoils the row it was given, as a sampler may.
#pragma once

#include <cstdint>
#include <string>

#include "sampling/generation.h"

namespace coppice::testing {

/// The token that a sample picks. 0 <= token < 1000.
kv::Token fake_token(std::uint64_t logits_hash, std::uint64_t seed, int n_before);

/// The text of a token: its number and a space.
std::string fake_text(kv::Token token);

/// What a FakeScorer says of `next` behind logits of this hash: [0, 1), and 1 to 1000.
float fake_logprob(std::uint64_t logits_hash, kv::Token next);
std::int32_t fake_rank(std::uint64_t logits_hash, kv::Token next);

/// Scores that are a function of the logits and the token. The alternatives are the tokens before it.
class FakeScorer final : public sampling::Scorer {
 public:
  sampling::PromptToken score(std::span<const float> logits, kv::Token next, int n_top) override;
  sampling::PromptToken name(kv::Token token) override;
};

class FakeGeneration final : public sampling::Generation {
 public:
  /// Ends with kStop at its `stop_after`-th token; 0: never.
  explicit FakeGeneration(std::uint64_t seed, int stop_after = 0) : seed_(seed), stop_after_(stop_after) {}

  /// next() throws std::runtime_error, or std::bad_alloc, instead of giving the token after `n_before` others.
  void throw_at(int n_before, bool bad_alloc) {
    throw_at_ = n_before;
    throw_bad_alloc_ = bad_alloc;
  }

  /// Then it throws sampling::Unsatisfiable instead.
  void be_unsatisfiable() { unsatisfiable_ = true; }

  /// flush() throws std::runtime_error.
  void fail_flush() { flush_fails_ = true; }

  /// Each token is ready only when it was asked for so many times without being so.
  void be_late(int times) { late_ = times; }

  bool ready() override;
  sampling::Piece next(std::span<float> logits) override;
  Needs needs() const override { return late_ > 0 ? Needs::kLogits : Needs::kToken; }
  sampling::SamplerSpec spec() override;
  sampling::Piece take(kv::Token token, std::span<const float> logits) override;
  sampling::Piece flush() override;

 private:
  void throw_if_told() const;

  std::uint64_t seed_;
  int stop_after_;
  int throw_at_ = -1;
  bool throw_bad_alloc_ = false;
  bool unsatisfiable_ = false;
  bool flush_fails_ = false;
  int late_ = 0, asked_ = 0;
  int n_tokens_ = 0;
  std::string held_;
};

}  // namespace coppice::testing
