// What a request may ask of the sampler: plain data with OpenAI's defaults, and its check.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/compiler.h"
#include "kv/types.h"
#include "sampling/sampler_spec.h"

namespace coppice::sampling {

/// A value out of its range; field() is the API's name for it.
class ParamError : public std::invalid_argument {
 public:
  ParamError(std::string field, const std::string& message)
      : std::invalid_argument(field + ": " + message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

/// A text that must follow a grammar.
struct GrammarParams {
  std::shared_ptr<const grammar::Grammar> grammar;  ///< null: none
  std::string after;         ///< it holds from the end of this text on; empty: from the beginning
  grammar::Passage skipped;  ///< `after` doesn't count in it
  /// With `after`: the first token must be this one, or it holds from the beginning; -1: any may be.
  kv::Token opens = -1;
  std::string begun;  ///< counts as its first text: the prompt's end, or `after` itself
  std::string payer;  ///< whose turn it is where masks are computed (mask_pool.h)
};

/// Thoughts before an answer that are bounded (thought_budget.h).
struct ThoughtParams {
  std::int32_t budget = -1;  ///< tokens of thoughts, their marks not counted; -1: no bound
  std::string begin, end;    ///< marks of thoughts, as the vocabulary writes them. REQUIRES with a budget: not empty
  bool open = false;         ///< the prompt has begun them
  std::vector<kv::Token> close;  ///< `end`, and what must follow. REQUIRES with a budget: not empty
  /// The same for thoughts that begin again behind it; empty: they come only before the answer.
  std::vector<kv::Token> last;
  /// Behind `close` one of these follows; none is empty. None: any token does.
  std::vector<std::vector<kv::Token>> ways;
};

/// Applied in this order: the grammar's mask, allowed tokens and logit bias (on the raw logits), penalties, bad words,
/// temperature, top-k, top-p, min-p; each filter sees the distribution that the one before it left, renormalised (the
/// order of vLLM and Transformers; llama.cpp applies temperature last).
struct SamplingParams {
  float temperature = 1;  ///< [0, inf); below kGreedyTemperature: greedy, the lowest id wins ties; no filters then
  int top_k = 0;          ///< <= 0: off
  float top_p = 1;        ///< (0, 1]; 1: off
  float min_p = 0;        ///< [0, 1]; of the most likely token's probability; 0: off

  /// (0, inf); 1: off. Logits of tokens in the prompt or generated text are divided by it if positive, else
  /// multiplied, once however often they occur.
  float repeat_penalty = 1;
  float frequency_penalty = 0;  ///< [-2, 2]; times the count in the generated text, subtracted
  float presence_penalty = 0;   ///< [-2, 2]; subtracted once if in the generated text

  std::unordered_map<kv::Token, float> logit_bias;  ///< added to the raw logits; [-100, 100], or kNever

  std::vector<kv::Token> allowed_tokens;          ///< only these are drawn; empty: all
  std::vector<std::vector<kv::Token>> bad_words;  ///< never generated; none is empty
  std::vector<kv::Token> stop_tokens;             ///< each ends the sample, as an end token does
  std::int32_t min_tokens = 0;                    ///< before so many, neither such a token nor a stop string ends it

  std::optional<std::uint64_t> seed;  ///< sample i draws from seed + i; none: a random one
  std::vector<std::string> stop;      ///< non-empty, UTF-8
  bool ignore_eos = false;            ///< end tokens are never drawn
  bool show_special = false;          ///< special tokens have a text
  int logprobs = -1;                  ///< -1: none; n >= 0: the chosen token's and the n most likely ones'
  GrammarParams grammar;
  ThoughtParams thoughts;
  bool logprobs_of_end = false;  ///< with logprobs: an end token has an entry, too
  /// With logprobs: of the distribution that the token was drawn from, behind masks, penalties and filters. What cannot
  /// be drawn isn't among the likeliest.
  bool logprobs_of_drawn = false;
};

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr std::size_t kMaxLogitBias = 1024;  ///< tokens with a bias
inline constexpr std::size_t kMaxStopBytes = 4096;  ///< of one stop string
inline constexpr std::size_t kMaxStopTokens = 1024;
inline constexpr std::size_t kMaxBadWords = 1024;
inline constexpr std::size_t kMaxBadWordTokens = 256;                     ///< of one
inline constexpr float kNever = -std::numeric_limits<float>::infinity();  ///< a bias: such a token is never drawn

/// Throws ParamError, naming the field as the API does. n_vocab: the vocabulary's size.
void check(const SamplingParams& params, std::int32_t n_vocab);

}  // namespace coppice::sampling
