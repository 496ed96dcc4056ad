// OpenAI's response shapes: one JSON body, or a stream of server-sent events.
//
// Not thread safe; plain values. Text handed in is valid UTF-8 (engine pieces are).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "sampling/generation.h"
#include "server/api_error.h"
#include "server/job.h"
#include "server/json.h"
#include "server/openai_request.h"

namespace coppice::server {

/// What every response and chunk repeats.
struct ResponseHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;            ///< "chatcmpl-..." or "cmpl-..."
  std::int64_t created = 0;  ///< seconds since 1970
  std::string model;
};

JsonObject usage_json(const engine::Usage& usage);

/// {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}
JsonObject chat_logprobs(std::span<const sampling::LogprobEntry> entries);

/// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. `offset`: characters of the choice's text so
/// far, moved on.
JsonObject completion_logprobs(std::span<const sampling::LogprobEntry> entries, std::int64_t& offset);

/// A whole answer, gathered from deltas. They become JSON as they come, as a stream's do: so its size is known, and at the
/// end the io thread has parts to put together, not a tree of a million values to write.
class ResponseBody {
 public:
  /// `echoes`: completions only: text that goes before that of each of a prompt's choices; one for each prompt, or none.
  ResponseBody(ResponseHead head, int n_choices, bool with_logprobs, const std::vector<std::string>& echoes = {});
  /// REQUIRES: delta.choice < n_choices.
  void add(Delta&& delta);
  /// Of the choices' JSON so far; what goes around it doesn't count.
  std::size_t bytes() const { return bytes_; }
  /// `cache_report`: null: none.
  std::string json(const engine::Usage& usage, const Json& cache_report = nullptr) const;

 private:
  struct Choice {
    std::string text;  ///< as in JSON, without the quotes
    struct List {
      std::string name, items;  ///< as in JSON, without the brackets
    };
    std::vector<List> logprobs;
    std::int64_t offset = 0;  ///< characters so far, for text_offset
    std::optional<sampling::Finish> finish;
  };
  void append_choice(std::string& json, std::size_t index) const;

  ResponseHead head_;
  bool with_logprobs_;
  std::vector<std::string> echoes_;  ///< as in JSON, without the quotes
  std::vector<Choice> choices_;
  std::size_t bytes_ = 0;
};

/// A stream's events, as text to send.
class ResponseStream {
 public:
  /// `echoes`: see ResponseBody.
  ResponseStream(ResponseHead head, int n_choices, bool with_logprobs, bool include_usage,
                 std::vector<std::string> echoes = {});

  /// The events for news of one choice; the choice's first ones open it (chat: its role; completions: its echo).
  std::string events(Delta&& delta);
  /// The chunk with usage and cache_report, as far as they are wanted, and [DONE].
  std::string end(const engine::Usage& usage, const Json& cache_report = nullptr) const;
  /// An error in mid-stream: the last event.
  static std::string error(const ApiError& error);

 private:
  std::string chunk(int choice, Json content, Json logprobs, const char* finish) const;

  struct Choice {
    bool opened = false;
    std::int64_t offset = 0;  ///< characters sent, for text_offset
  };
  ResponseHead head_;
  bool with_logprobs_, include_usage_;
  std::vector<std::string> echoes_;
  std::vector<Choice> choices_;
};

}  // namespace coppice::server
