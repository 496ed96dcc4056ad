// GenerationRequest: what a client wants generated, in no API's words. Plain data, made by a Dialect
// (server/api/base/dialect.h). Its terms are known until the reply's end; its texts go when they are tokenized.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/pinned_prefix.h"
#include "grammar/source.h"
#include "kv/types.h"
#include "sampling/params.h"
#include "server/jobs/prompt_pictures.h"
#include "text/chat_template.h"
#include "text/marked_text.h"
#include "text/tool_chat.h"

namespace coppice::server {

/// A part of a message: a text, or a picture.
struct ContentPart {
  std::string text;
  std::shared_ptr<const PictureFile> picture = {};  ///< null: it is a text
};

struct Message {
  std::string role;
  std::vector<ContentPart> content;
  std::vector<text::ChatCall> calls;  ///< that this turn of the assistant made
  std::string reasoning;              ///< what the assistant thought before its answer
  std::string call_id;                ///< of the call whose result this is
};

/// What a chat may call, and what its template is told besides.
struct Tools {
  std::vector<text::ToolSpec> specs;
  bool may_call = true;  ///< false: they are told of, but not called
  bool must_call = false;
  std::string only;                  ///< with must_call: the tool that must be called; empty: any
  std::vector<std::string> allowed;  ///< calls are restricted to these; empty: to all. The prompt tells of all
  bool parallel = true;              ///< an answer may call several
  bool forms = false;                ///< an answer that calls nothing is to have a form: Preparation knows
  std::optional<bool> thinks;        ///< false: models that can do without are told not to; unset: as the operator says
  bool keep_thoughts = false;        ///< reasoning stays in the text, tags and all, where nothing is called
  std::map<std::string, std::string> variables;  ///< of the template, by name: JSON

  bool operator==(const Tools&) const = default;
};

/// A place in a chat, or the end of a prompt: what goes before it stays cached for a while.
struct PinMark {
  static constexpr std::size_t kAll = static_cast<std::size_t>(-1);
  bool whole = false;           ///< the end of the prompt; else of a chat:
  std::size_t tools = kAll;     ///< the first so many
  std::size_t messages = kAll;  ///< the first so many
  std::size_t parts = kAll;     ///< of the last of these the first so many parts of its content
  std::size_t calls = kAll;     ///< ... and of its calls
  engine::PinWish wish;         ///< but for its tokens
};

/// Texts among token ids and pictures: the first part has the model's beginning token if it is a text.
using PromptParts = std::vector<std::variant<std::string, kv::Token, std::shared_ptr<const PictureFile>>>;

/// Text, or token ids that are taken as they are, or both, or a chat as its template writes it.
using Prompt = std::variant<std::string, std::vector<kv::Token>, PromptParts, text::MarkedText>;

/// Figures that an answer tells besides its usage.
struct Telemetry {
  bool progress = false;  ///< streams: how far the prompt is, after each step
  bool timings = false;   ///< times and speeds, at the end; streams: with each piece of text, too
};

struct GenerationTerms {
  std::string model;                     ///< the name that the client uses; empty: whatever is served
  std::string input_field = "messages";  ///< what the client calls the input, for errors

  int n = 1;                               ///< samples of each prompt
  std::optional<std::int32_t> max_tokens;  ///< none: as far as context and pool go; 0: the prompt is computed, no more
  bool echo = false;                       ///< prompts: each answer begins with its prompt's text, and its logprobs
                                           ///< with the prompt's
  int prompt_logprobs = -1;                ///< of the prompt's tokens, and of as many alternatives to each; -1: none
  std::int32_t logprobs_from = 0;          ///< the first of the prompt's tokens that these are wanted of
  bool embed = false;                      ///< the prompts' embeddings are wanted; then n is 1 and max_tokens 0
  bool prompt_text = false;                ///< the answer tells the prompt as the model gets it
  bool stream = false;                     ///< as events, while it is generated
  bool stream_usage = false;               ///< the stream's end tells the usage
  Telemetry telemetry;
  bool cache_report = false;  ///< the answer tells why the prompt's prefix did not match further
  bool match_cache = true;    ///< false: all of the prompt is computed; it is cached as ever

  std::string cache_salt;                 ///< requests with different salts share no cached prefix
  std::int32_t priority = 0;              ///< lower goes first
  std::optional<double> timeout_seconds;  ///< > 0
  std::string pin_payer;                  ///< whose share of the pool pins take

  std::shared_ptr<const void> own;  ///< what the dialect that made this keeps for its answer
  std::size_t own_bytes = 0;        ///< of that
};

struct GenerationRequest : GenerationTerms {
  // The input: one of the two.
  std::vector<Message> messages;
  Tools tools;  ///< messages
  std::vector<Prompt> prompts;
  bool beginning = false;  ///< messages: the prompt is what all chats have in common that begin with them
  text::TurnEnd turn_end = text::TurnEnd::kOpenTurn;  ///< messages
  std::vector<PinMark> pins;                          ///< in the order of their places; only with one prompt
  bool add_special = true;                            ///< to texts: the model's beginning and end tokens
  /// Only so many of a prompt's last tokens, >= 1; 0: as many as the context holds.
  std::optional<std::int32_t> keep_last;

  std::optional<std::int32_t> thought_budget;  ///< messages: tokens that a sample may think; none, -1: no bound
  std::string thought_budget_field;            ///< what the client calls it

  sampling::SamplingParams sampling;                     ///< and, in texts, what becomes part of it:
  std::vector<std::pair<std::string, float>> text_bias;  ///< for each token of each text, tokenized by itself
  std::vector<std::string> bad_words;
  std::optional<grammar::Constraint> grammar;  ///< compiled by Preparation, which sets that of `sampling`
};

}  // namespace coppice::server
