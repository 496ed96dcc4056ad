// What one sample of a request does with the logits of its rows: pick a token, turn it into text, know when to stop.
// Abstract, so that the engine links neither a tokenizer nor a tensor library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/types.h"
#include "sampling/sampler_spec.h"

namespace coppice::sampling {

/// A token's log-probability under the raw distribution: before temperature, penalties and truncation.
struct TokenLogprob {
  kv::Token token = 0;
  std::string bytes;  ///< the token's bytes; not always valid UTF-8
  float logprob = 0;
};

struct LogprobEntry {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< most likely first
};

/// A token of a prompt, as the tokens before it foretell it.
struct PromptToken {
  LogprobEntry entry;     ///< without a rank: its token and bytes only
  std::int32_t rank = 0;  ///< 1: no token is likelier; 0: its log-probability isn't wanted
};

/// Why a sample's text ended.
enum class Finish : std::uint8_t {
  kStop,           ///< end-of-sequence token or a stop string
  kLength,         ///< max_tokens, the context or the pool
  kCancelled,      ///< the client went away, or the server ends
  kTimeout,        ///< the request's deadline passed
  kUnsatisfiable,  ///< no token may come next, by what the request asks for
  kError,
};

/// No token may come next: bans and biases leave none, or none that the grammar allows; or the grammar is too ambiguous
/// to be followed. The client's mistake. what() is a sentence for it.
class Unsatisfiable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What one sampled token brings. `text` may be empty (held back: half a character, or the beginning of a stop string)
/// and may hold the text of earlier tokens. Always valid UTF-8.
struct Piece {
  kv::Token token = -1;  ///< -1: none, nothing but the end of a sample
  std::string text;
  std::vector<LogprobEntry> logprobs;  ///< of the tokens whose text is in `text`; empty when not asked for
  std::optional<Finish> finish;        ///< set when this token ends the sample
  std::string stop;                    ///< with kStop: the stop string that was met; empty: a token ended it
};

/// One sample's sampler, random generator, grammar and detokenizer: everything that must survive a preemption. Not
/// thread safe; the engine's thread calls it.
class Generation {
 public:
  virtual ~Generation() = default;

  /// Begins what next() needs besides logits, on other threads.
  virtual void prepare() {}
  /// next() and spec() have nothing to wait for. Else somebody is told when they have (MaskPool).
  virtual bool ready() { return true; }

  /// Picks the next token. logits: [n_vocab], raw; may be changed in place. Throws Unsatisfiable.
  virtual Piece next(std::span<float> logits) = 0;

  /// What there has to be for its next tokens. It may come to need more.
  enum class Needs : std::uint8_t {
    kLogits,    ///< next() has to see the logits and draws itself
    kLogprobs,  ///< spec() says how to draw, and take() has to see the logits
    kToken,     ///< spec() says how to draw
  };
  virtual Needs needs() const { return Needs::kLogits; }

  /// How the next token is drawn by a device, which next() would draw else. It may be asked for again, and a token
  /// drawn by it be thrown away: nothing changes. Throws Unsatisfiable. REQUIRES: needs() != kLogits.
  virtual SamplerSpec spec() { return {}; }

  /// What next() would bring, with the token that was drawn by spec(); -1: none may come next. logits: as needs() says,
  /// [n_vocab], raw; else empty. Throws Unsatisfiable. REQUIRES: needs() != kLogits.
  virtual Piece take(kv::Token /*token*/, std::span<const float> /*logits*/) { return {}; }

  /// The text (and logprobs) still held back, when the engine ends the sample for a reason of its own (length).
  virtual Piece flush() = 0;
};

/// Reads the log-probabilities of prompts' tokens. Requests share it: it keeps nothing but scratch memory. Not thread
/// safe; the engine's thread calls it.
class Scorer {
 public:
  virtual ~Scorer() = default;

  /// `next` and the `n_top` likeliest tokens. logits: [n_vocab], raw, of the token before `next`.
  virtual PromptToken score(std::span<const float> logits, kv::Token next, int n_top) = 0;

  /// A token whose log-probability isn't wanted.
  virtual PromptToken name(kv::Token token) = 0;
};

}  // namespace coppice::sampling
