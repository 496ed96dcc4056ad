// OpenAI's answers: one JSON body, or a stream of server-sent events.
//
// Not thread safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "sampling/generation.h"
#include "server/api/base/dialect.h"
#include "server/api/base/json.h"
#include "server/api/openai/openai_logprobs.h"
#include "server/api/openai/openai_request.h"
#include "server/base/request_error.h"
#include "server/jobs/answer.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// {"error": {"message", "type", "param", "code"}}
std::string openai_error(const RequestError& error);

JsonObject usage_json(const engine::Usage& usage);
/// With how many of the answers' tokens were reasoning.
JsonObject chat_usage_json(const engine::Usage& usage, std::int64_t reasoning_tokens);

/// What an answer tells of its prompts' tokens: as many alternatives to each; -1: nothing.
struct PromptLogprobs {
  int in_echo = -1;  ///< completions: their "logprobs" begin with the prompt's
  int in_list = -1;  ///< "prompt_logprobs"
};

/// A whole answer. Deltas become JSON as they come: so its size is known, and at the end the io thread has parts to put
/// together, not a tree of a million values to write.
class OpenAiBody final : public Answer {
 public:
  OpenAiBody(Endpoint endpoint, AnswerHead head, bool with_logprobs, PromptLogprobs of_prompt = {},
             Telemetry telemetry = {});
  /// REQUIRES: delta.choice < n_choices.
  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError& error) override { return openai_error(error); }
  /// Of the choices' JSON; what goes around it doesn't count.
  std::size_t bytes() const override { return bytes_; }

 private:
  struct List {
    std::string name, items;  ///< as in JSON, without the brackets
  };
  struct Call {
    std::string id, name;
    std::string arguments;  ///< as in JSON, without the quotes
  };
  struct Choice {
    std::string text;       ///< as in JSON, without the quotes
    std::string reasoning;  ///< as in JSON, without the quotes
    std::vector<Call> calls;
    std::vector<List> logprobs;
    std::int64_t offset = 0;  ///< characters so far, for text_offset
    std::optional<sampling::Finish> finish;
    bool cut_call = false;
  };
  struct Prompt {
    TokenPlaces places;
    std::vector<List> logprobs;  ///< of its tokens: each of its choices begins with them
    std::string list;            ///< "prompt_logprobs", without the brackets
  };
  /// Adds what is told `times`.
  void append(std::string& to, const std::string& text, std::size_t times = 1);
  void append_items(std::vector<List>& to, const JsonObject& news, std::size_t times = 1);
  void add_prompt(Prompt& prompt, std::span<const sampling::PromptToken> tokens);
  void add_calls(Choice& choice, std::span<const CallDelta> calls);
  void append_message(std::string& json, const Choice& choice) const;
  void append_choice(std::string& json, std::size_t index) const;
  std::size_t samples() const { return choices_.size() / prompts_.size(); }  ///< of each prompt

  Endpoint endpoint_;
  AnswerHead head_;  ///< its echoes as in JSON, without the quotes
  bool with_logprobs_;
  PromptLogprobs of_prompt_;
  Telemetry telemetry_;
  std::optional<engine::Usage> of_last_prompt_;
  std::int64_t reasoning_tokens_ = 0;  ///< of all choices
  std::vector<Choice> choices_;
  std::vector<Prompt> prompts_;
  std::size_t bytes_ = 0;
};

class OpenAiStream final : public Answer {
 public:
  OpenAiStream(Endpoint endpoint, AnswerHead head, bool with_logprobs, bool with_usage, Telemetry telemetry = {});

  /// A choice's first events open it (chat: its role; completions: its echo).
  std::string delta(Delta&& delta) override;
  /// The chunk with usage and cache_report, as far as they are wanted, and [DONE].
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError& error) override;

 private:
  std::string open(int choice, const std::string* echo) const;
  std::string about_prompt(const Delta& delta) const;
  JsonObject chunk_json(int choice, Json content, Json logprobs = nullptr, const char* finish = nullptr) const;
  std::string chunk(int choice, Json content, Json logprobs = nullptr, const char* finish = nullptr) const;

  struct Choice {
    bool opened = false;
    bool calls = false;       ///< it called a tool
    std::int64_t offset = 0;  ///< characters sent, for text_offset
  };
  Endpoint endpoint_;
  AnswerHead head_;
  bool with_logprobs_, with_usage_;
  Telemetry telemetry_;
  std::optional<engine::Usage> of_last_prompt_;
  std::int64_t reasoning_tokens_ = 0;  ///< of all choices
  std::vector<Choice> choices_;
};

}  // namespace coppice::server
