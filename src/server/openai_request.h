// OpenAiRequest: the body of /v1/chat/completions or /v1/completions as typed, checked data.
//
// Plain data. Parsing throws ApiError naming the field: wrong types, values out of range, and fields that
// OpenAI knows but this server does not have yet. Fields nobody knows are ignored; null counts as absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kv/types.h"
#include "sampling/params.h"
#include "server/json.h"
#include "text/chat_template.h"

namespace coppice::server {

enum class Endpoint : std::uint8_t { kChat, kCompletions };

/// Prompts of one request: each waits by itself in the queue, of which nobody should have more than a small part.
inline constexpr int kMaxPrompts = 128;

/// What the parser must know of the model and of the operator's wishes.
struct RequestLimits {
  std::int32_t n_vocab = 0;
  int max_choices = 32;  ///< of `n`: the samples of one prompt run together
  int max_prompts = kMaxPrompts;
};

/// Prompts times n of one request.
inline constexpr int kMaxChoicesPerRequest = 1024;

/// A completions prompt: text, or token ids taken as they are.
using Prompt = std::variant<std::string, std::vector<kv::Token>>;

struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                        ///< empty: the one that is served
  std::vector<text::ChatMessage> messages;  ///< kChat; at least one
  bool add_generation_prompt = true;        ///< kChat
  std::vector<Prompt> prompts;              ///< kCompletions; at least one
  bool echo = false;                        ///< kCompletions: choices begin with the prompt's text
  int n = 1;                                ///< samples of each prompt
  std::int32_t max_tokens = 0;              ///< 0: as far as context and pool go
  sampling::SamplingParams sampling;
  bool stream = false;
  bool include_usage = false;
  std::string cache_salt;
  std::int32_t priority = 0;              ///< lower goes first
  std::optional<double> timeout_seconds;  ///< > 0
  bool cache_report = false;
};

/// Throws ApiError.
OpenAiRequest parse_request(Endpoint endpoint, const JsonObject& body, const RequestLimits& limits);

/// The messages of a chat; also what /tokenize accepts. Throws ApiError.
std::vector<text::ChatMessage> parse_messages(const Json& messages);

}  // namespace coppice::server
