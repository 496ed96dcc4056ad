#include "server/api/anthropic/anthropic_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/api/anthropic/cache_control.h"
#include "server/api/base/json_fields.h"

namespace coppice::server {

namespace {

const char* error_type(const RequestError& error) {
  switch (error.status()) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return error.status() < 500 ? "invalid_request_error" : "api_error";
  }
}

/// Agents know a full context by Anthropic's own words, and read the two numbers. An answer needs one of the context.
std::string message_of(const RequestError& error) {
  const auto& sizes = error.sizes();
  if (!sizes) return error.what();
  return fmt::format("prompt is too long: {} tokens > {} maximum", sizes->tokens,
                     std::min(sizes->context, sizes->tokens) - 1);
}

const char* stop_reason(const AnthropicEnd& end) {
  if (end.finish != sampling::Finish::kStop) return "max_tokens";
  if (end.calls) return "tool_use";
  return end.stop.empty() ? "end_turn" : "stop_sequence";
}

Json stop_sequence(const AnthropicEnd& end) {
  return end.stop.empty() ? Json(nullptr) : Json(end.stop);
}

/// The three kinds of input tokens add up to the prompt's. Everything is cached, whether asked for or not: so only what
/// was pinned is told as created.
JsonObject anthropic_usage(const engine::Usage& usage) {
  const CacheCreation created = cache_creation(usage.pins, usage.cached_tokens);
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens - created.tokens()},
          {"cache_creation_input_tokens", created.tokens()},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"cache_creation", JsonObject{{"ephemeral_5m_input_tokens", created.five_minutes},
                                        {"ephemeral_1h_input_tokens", created.one_hour}}},
          {"output_tokens", usage.completion_tokens}};
}

JsonObject message_json(const AnswerHead& head) {
  return {{"id", head.id}, {"type", "message"}, {"role", "assistant"}, {"model", head.model}};
}

std::string event(const char* type, JsonObject data) {
  data["type"] = type;
  return fmt::format("event: {}\ndata: {}\n\n", type, dump(std::move(data)));
}

void add_report(JsonObject& to, CacheReportList reports, const AnswerHead& head) {
  if (Json report = cache_reports_json(reports, head.reporting); !report.is_null())
    to["cache_report"] = std::move(report);
}

/// A call's block; as text where it was cut off, so that nobody runs it.
JsonObject call_json(const std::string& id, const std::string& name, const std::string& arguments) {
  try {
    return {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", parse_body(arguments)}};
  } catch (const RequestError&) {
    return {{"type", "text"}, {"text", name + " " + arguments}};
  }
}

}  // namespace

std::string anthropic_error(const RequestError& error) {
  JsonObject json = {{"type", "error"},
                     {"error", JsonObject{{"type", error_type(error)}, {"message", message_of(error)}}}};
  json["request_id"] = error.request_id().empty() ? Json(nullptr) : Json(error.request_id());
  return dump(std::move(json));
}

void AnthropicEnd::take(const Delta& delta) {
  calls |= !delta.calls.empty();
  if (!delta.end) return;
  finish = delta.end->finish;
  calls &= !delta.end->cut_call;
  stop = delta.end->stop;
}

std::string AnthropicBody::delta(Delta&& delta) {
  end_.take(delta);
  text_ += delta.text;
  reasoning_ += delta.reasoning;
  bytes_ += delta.text.size() + delta.reasoning.size();
  for (const CallDelta& news : delta.calls) {
    if (news.index >= calls_.size()) calls_.resize(news.index + 1);
    Call& call = calls_[news.index];
    call.id += news.id;
    call.name += news.name;
    call.arguments += news.arguments;
    bytes_ += news.id.size() + news.name.size() + news.arguments.size();
  }
  return "";
}

std::string AnthropicBody::end(const engine::Usage& usage, CacheReportList reports) {
  JsonArray content;
  if (!reasoning_.empty())
    content.push_back(JsonObject{{"type", "thinking"}, {"thinking", reasoning_}, {"signature", ""}});
  if (!text_.empty()) content.push_back(JsonObject{{"type", "text"}, {"text", text_}});
  for (const Call& call : calls_) content.push_back(call_json(call.id, call.name, call.arguments));
  JsonObject json = message_json(head_);
  json["content"] = std::move(content);
  json["stop_reason"] = stop_reason(end_);
  json["stop_sequence"] = stop_sequence(end_);
  json["usage"] = anthropic_usage(usage);
  add_report(json, reports, head_);
  return dump(std::move(json));
}

std::string AnthropicStream::open_message() {
  if (std::exchange(opened_, true)) return "";
  JsonObject message = message_json(head_);
  message["content"] = JsonArray();
  message["stop_reason"] = nullptr;
  message["stop_sequence"] = nullptr;
  message["usage"] = anthropic_usage({.prompt_tokens = head_.prompt_tokens});  // what was cached is told at the end
  return event("message_start", {{"message", std::move(message)}});
}

std::string AnthropicStream::close() {
  if (std::exchange(block_, Block::kNone) == Block::kNone) return "";
  return event("content_block_stop", {{"index", n_blocks_ - 1}});
}

std::string AnthropicStream::open(Block kind, JsonObject block) {
  if (block_ == kind && kind != Block::kCall) return "";
  std::string out = close();
  block_ = kind;
  return out + event("content_block_start", {{"index", n_blocks_++}, {"content_block", std::move(block)}});
}

std::string AnthropicStream::add(const char* type, const char* name, const std::string& text) const {
  return event("content_block_delta", {{"index", n_blocks_ - 1}, {"delta", JsonObject{{"type", type}, {name, text}}}});
}

std::string AnthropicStream::delta(Delta&& delta) {
  end_.take(delta);
  std::string out = open_message();
  if (!delta.reasoning.empty()) {
    out += open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    out += add("thinking_delta", "thinking", delta.reasoning);
  }
  if (!delta.text.empty()) {
    out += open(Block::kText, {{"type", "text"}, {"text", ""}});
    out += add("text_delta", "text", delta.text);
  }
  for (const CallDelta& call : delta.calls) {
    if (block_ != Block::kCall || call.index != call_ || !call.name.empty()) {
      call_ = call.index;
      out += open(Block::kCall, {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", JsonObject()}});
    }
    if (!call.arguments.empty()) out += add("input_json_delta", "partial_json", call.arguments);
  }
  return out;
}

std::string AnthropicStream::end(const engine::Usage& usage, CacheReportList reports) {
  JsonObject last = {{"delta", JsonObject{{"stop_reason", stop_reason(end_)}, {"stop_sequence", stop_sequence(end_)}}},
                     {"usage", anthropic_usage(usage)}};
  add_report(last, reports, head_);
  return open_message() + close() + event("message_delta", std::move(last)) + event("message_stop", {});
}

std::string AnthropicStream::error(const RequestError& error) {
  return fmt::format("event: error\ndata: {}\n\n", anthropic_error(error));
}

}  // namespace coppice::server
