// Answers of Anthropic's Messages API: one body, or a stream of named events.
//
// Not thread safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/base/dialect.h"
#include "server/jobs/answer.h"

namespace coppice::server {

/// {"type": "error", "error": {"type", "message"}}
std::string anthropic_error(const RequestError& error);

/// What both kinds of answer know of an end.
struct AnthropicEnd {
  std::optional<sampling::Finish> finish;
  std::string stop;    ///< the stop sequence that was met
  bool calls = false;  ///< it called a tool

  void take(const Delta& delta);
};

class AnthropicBody final : public Answer {
 public:
  explicit AnthropicBody(AnswerHead head) : head_(std::move(head)) {}
  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError& error) override { return anthropic_error(error); }
  std::size_t bytes() const override { return bytes_; }

 private:
  struct Call {
    std::string id, name, arguments;
  };
  AnswerHead head_;
  std::string text_, reasoning_;
  std::vector<Call> calls_;
  AnthropicEnd end_;
  std::size_t bytes_ = 0;
};

class AnthropicStream final : public Answer {
 public:
  explicit AnthropicStream(AnswerHead head) : head_(std::move(head)) {}
  /// The first call's events open the message.
  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError& error) override;

 private:
  enum class Block { kNone, kThinking, kText, kCall };
  std::string open_message();
  std::string open(Block kind, JsonObject block);
  std::string close();
  std::string add(const char* type, const char* name, const std::string& text) const;

  AnswerHead head_;
  AnthropicEnd end_;
  bool opened_ = false;
  Block block_ = Block::kNone;
  int n_blocks_ = 0;      ///< opened so far
  std::size_t call_ = 0;  ///< whose block is open
};

}  // namespace coppice::server
