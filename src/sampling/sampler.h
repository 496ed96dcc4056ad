// Sampler: one sample's way from logits to a token: bias, penalties, filters, and its own random numbers.
//
// Not thread safe. Scratch memory (up to some MB for a flat distribution) is the thread's, not the sample's.
//
// Invariants
//   1. pick() leaves the logits as it found them, so raw log-probabilities can be read afterwards.
//   2. What is drawn depends on the parameters, the seed, the prompt and the logits given so far, on nothing else.
//   3. The n-th token takes the seed's n-th number (philox.h), on whatever device it is drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/types.h"
#include "sampling/logit_scan.h"
#include "sampling/params.h"
#include "sampling/sampler_spec.h"

namespace coppice::sampling {

/// A prompt's tokens, each once, in order: what a repetition penalty must know of it.
using PromptTokens = std::vector<kv::Token>;
PromptTokens prompt_tokens(std::span<const kv::Token> prompt);

class Sampler {
 public:
  /// params and prompt may be shared with other samplers; a null prompt: none. banned: tokens never drawn; ends: not
  /// among the first min_tokens. n_vocab: tokens from this id on are never drawn either.
  Sampler(std::shared_ptr<const SamplingParams> params, std::uint64_t seed, std::shared_ptr<const PromptTokens> prompt,
          std::span<const kv::Token> banned, std::int32_t n_vocab, std::span<const kv::Token> ends = {});

  /// Draws a token and counts it for the penalties. logits: [n_vocab] or other sizes > 0: what both have is
  /// used. mask: of a grammar, bit i % 32 of word i / 32 allows token i; empty: all are allowed. None: no token is
  /// possible (all are -inf).
  std::optional<kv::Token> pick(std::span<float> logits, std::span<const std::int32_t> mask = {});

  /// The tokens that the next pick() may draw with their weights, likeliest first. Greedy: one. Empty: none is
  /// possible. Arguments: as pick()'s.
  std::vector<Candidate> distribution(std::span<float> logits, std::span<const std::int32_t> mask = {});

  /// What the next pick() would do, for another device to draw. mask: as pick()'s.
  SamplerSpec spec(std::span<const std::int32_t> mask = {}) const;

  /// Counts a token that was drawn by spec().
  void take(kv::Token token);

 private:
  struct Drawn {
    bool in_prompt = false;
    std::int32_t times = 0;
  };
  struct Edit {
    kv::Token token = 0;
    float raw = 0;
  };

  /// The row that pick() looks at, or a copy where a mask or a list allows only some.
  std::span<float> visible(std::span<float> logits, std::span<const std::int32_t> mask);
  bool greedy() const { return temperature_ < kGreedyTemperature; }
  bool filtered() const { return top_k_ > 0 || top_p_ < 1 || min_p_ > 0; }

  /// The logits that may be changed: of another place, with the allowed tokens' only, where some are not allowed.
  std::span<float> allowed(std::span<float> logits);
  bool restricted() const { return !params_->allowed_tokens.empty(); }

  void apply_edits(std::span<float> logits);
  /// Calls f(token) for those that must not come next: banned ones, ends before their time, last tokens of bad words.
  template <class F>
  void for_each_barred(F&& f) const;
  void undo_edits(std::span<float> logits);
  void set(std::span<float> logits, kv::Token token, float value);
  bool counts() const { return repeat_ != 1 || frequency_ != 0 || presence_ != 0; }
  void count(kv::Token token);
  kv::Token draw();
  double filter();   ///< leaves what may be drawn in the candidates; the sum of their weights
  double uniform();  ///< [0, 1), 53 bits, the same on every platform

  float temperature_;
  std::size_t top_k_;  ///< 0: off
  float top_p_, min_p_;
  float repeat_, frequency_, presence_;
  std::int32_t n_vocab_;
  std::shared_ptr<const SamplingParams> params_;
  std::shared_ptr<const PromptTokens> prompt_;  ///< null: no penalty asks for it
  std::vector<kv::Token> banned_;
  std::vector<kv::Token> ends_;  ///< empty unless min_tokens bars them
  std::int32_t n_drawn_ = 0;
  std::vector<kv::Token> tail_;  ///< the last tokens drawn, as many as bad words may have but one
  std::size_t max_tail_ = 0;
  std::unordered_map<kv::Token, Drawn> drawn_;  ///< empty while no penalty is on
  std::uint64_t seed_;
  std::vector<Edit> edits_;  ///< of the pick in hand
};

}  // namespace coppice::sampling
