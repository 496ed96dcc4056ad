// GenerationRequest: what a client wants generated, in no API's words. Plain data, made by a Dialect (api/dialect.h).
// Its terms are known until the reply's end; its texts go when they are tokenized.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kv/types.h"
#include "sampling/params.h"

namespace coppice::server {

/// A part of a message. Text is the only kind so far.
struct ContentPart {
  std::string text;
};

struct ToolCall {
  std::string id, name;
  std::string arguments;  ///< JSON
};

struct Message {
  std::string role;
  std::vector<ContentPart> content;
  std::vector<ToolCall> tool_calls;  ///< that this turn of the assistant made. Preparation refuses them so far, and
  std::string reasoning;             ///< what the assistant thought before its answer
};

/// Text, or token ids that are taken as they are.
using Prompt = std::variant<std::string, std::vector<kv::Token>>;

struct GenerationTerms {
  std::string model;                     ///< the name that the client uses; empty: whatever is served
  std::string input_field = "messages";  ///< what the client calls the input, for errors

  int n = 1;                               ///< samples of each prompt
  std::optional<std::int32_t> max_tokens;  ///< none: as far as context and pool go; 0: the prompt is computed, no more
  bool echo = false;                       ///< prompts: each answer begins with its prompt's text, and its logprobs
                                           ///< with the prompt's
  int prompt_logprobs = -1;                ///< of the prompt's tokens, and of as many alternatives to each; -1: none
  std::int32_t logprobs_from = 0;          ///< the first of the prompt's tokens that these are wanted of
  bool stream = false;                     ///< as events, while it is generated
  bool stream_usage = false;               ///< the stream's end tells the usage
  bool cache_report = false;               ///< the answer tells why the prompt's prefix did not match further

  std::string cache_salt;                 ///< requests with different salts share no cached prefix
  std::int32_t priority = 0;              ///< lower goes first
  std::optional<double> timeout_seconds;  ///< > 0
};

struct GenerationRequest : GenerationTerms {
  // The input: one of the two.
  std::vector<Message> messages;
  std::vector<Prompt> prompts;
  bool add_generation_prompt = true;  ///< messages: open the assistant's turn
  sampling::SamplingParams sampling;
};

}  // namespace coppice::server
