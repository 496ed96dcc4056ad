// Log-probabilities in OpenAI's words, and in vLLM's those of prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sampling/generation.h"
#include "server/api/base/json.h"

namespace coppice::server {

/// Of UTF-8; a half one at the beginning doesn't count.
std::int64_t characters(std::string_view bytes);

/// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
JsonObject chat_logprobs(std::span<const sampling::LogprobEntry> entries);

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. `offset`: characters of the choice's text so
/// far, moved on.
JsonObject completion_logprobs(std::span<const sampling::LogprobEntry> entries, std::int64_t& offset);

/// The same of a prompt's tokens, with `n_top` alternatives; null where none is wanted. `offsets`: where each token
/// begins in the prompt's text, in characters.
JsonObject echo_logprobs(std::span<const sampling::PromptToken> tokens, int n_top,
                         std::span<const std::int64_t> offsets);

/// vLLM's: [null, {"token id": {"logprob", "rank", "decoded_token"}}]: the token and `n_top` alternatives.
JsonArray prompt_logprobs(std::span<const sampling::PromptToken> tokens, int n_top);

/// Finds a prompt's tokens in its text, one after the other. What the tokenizer put before the text takes no room in
/// it.
class TokenPlaces {
 public:
  explicit TokenPlaces(std::string text) : text_(std::move(text)) {}
  /// Where the next token begins, in characters.
  std::int64_t next(std::string_view bytes);

 private:
  std::string text_;
  std::size_t at_ = 0;  ///< bytes
  std::int64_t offset_ = 0;
};

}  // namespace coppice::server
