#include "server/api/responses/responses_answer.h"

#include <fmt/format.h>

#include "server/api/base/telemetry.h"
#include "server/api/openai/openai_answer.h"

namespace coppice::server {

namespace {

/// `object`: JSON of one that isn't empty.
std::string with_fields(std::string object, std::string_view fields) {
  if (fields.empty()) return object;
  object.back() = ',';
  return object.append(fields) += '}';
}

}  // namespace

std::string ResponsesAnswer::event(const char* type, JsonObject data, const std::string& response) const {
  data["type"] = type;
  data["sequence_number"] = n_events_++;
  std::string json = dump(std::move(data));
  if (!response.empty()) json = with_fields(std::move(json), "\"response\":" + response);
  return fmt::format("event: {}\ndata: {}\n\n", type, json);
}

std::string ResponsesAnswer::whole(const JsonObject& response) const {
  return with_fields(dump(response), repeated_);
}

std::string ResponsesAnswer::item_event(const char* type, JsonObject data) const {
  data["output_index"] = items_.size() - 1;
  data["item_id"] = items_.back().id;
  if (items_.back().kind != Kind::kCall) data["content_index"] = 0;
  return event(type, std::move(data));
}

JsonObject ResponsesAnswer::part_json(const Item& item) {
  if (item.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", item.text}};
  return {{"type", "output_text"}, {"text", item.text}, {"annotations", JsonArray()}, {"logprobs", JsonArray()}};
}

/// whole: with its content.
JsonObject ResponsesAnswer::item_json(const Item& item, bool whole) {
  JsonObject json = {{"id", item.id}, {"status", !whole ? "in_progress" : item.cut ? "incomplete" : "completed"}};
  if (item.kind == Kind::kCall) {
    json["type"] = "function_call";
    json["call_id"] = item.call_id;
    json["name"] = item.name;
    json["arguments"] = whole ? item.text : "";
    return json;
  }
  json["content"] = whole ? JsonArray{part_json(item)} : JsonArray();
  if (item.kind == Kind::kReasoning) {
    json["type"] = "reasoning";
    json["summary"] = JsonArray();
  } else {
    json["type"] = "message";
    json["role"] = "assistant";
  }
  return json;
}

JsonObject ResponsesAnswer::response(const char* status) const {
  JsonObject json = settings_;
  json["id"] = head_.id;
  json["object"] = "response";
  json["created_at"] = head_.created;
  json["model"] = head_.model;
  json["status"] = status;
  for (const char* name : {"error", "incomplete_details", "usage"}) json[name] = nullptr;
  JsonArray& output = json["output"].emplace_array();
  if (std::string_view(status) == "in_progress") return json;
  for (const Item& item : items_) output.push_back(item_json(item, true));
  return json;
}

std::string ResponsesAnswer::begin() {
  if (!stream_ || std::exchange(begun_, true)) return "";
  const std::string so_far = whole(response("in_progress"));
  return event("response.created", {}, so_far) + event("response.in_progress", {}, so_far);
}

std::string ResponsesAnswer::open(Kind kind, const CallDelta* call) {
  std::string out = close();
  const char* prefix = kind == Kind::kReasoning ? "rs" : kind == Kind::kText ? "msg" : "fc";
  Item& item = items_.emplace_back(Item{.kind = kind, .id = fmt::format("{}_{}_{}", prefix, head_.id, items_.size())});
  if (call) item.call_id = call->id, item.name = call->name;
  open_ = true;
  if (!stream_) return "";
  out += event("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", item_json(item, false)}});
  if (kind != Kind::kCall) out += item_event("response.content_part.added", {{"part", part_json(item)}});
  return out;
}

std::string ResponsesAnswer::close() {
  if (!std::exchange(open_, false) || !stream_) return "";
  const Item& item = items_.back();
  std::string out;
  switch (item.kind) {
    case Kind::kReasoning:
      out = item_event("response.reasoning_text.done", {{"text", item.text}});
      break;
    case Kind::kText:
      out = item_event("response.output_text.done", {{"text", item.text}, {"logprobs", JsonArray()}});
      break;
    case Kind::kCall:
      out = item_event("response.function_call_arguments.done", {{"name", item.name}, {"arguments", item.text}});
  }
  if (item.kind != Kind::kCall) out += item_event("response.content_part.done", {{"part", part_json(item)}});
  return out +
         event("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item_json(item, true)}});
}

std::string ResponsesAnswer::add(Kind kind, const CallDelta* call, const std::string& text) {
  std::string out;
  if (!open_ || items_.back().kind != kind || (call && !call->name.empty())) out = open(kind, call);
  items_.back().text += text;
  bytes_ += text.size();
  if (!stream_ || text.empty()) return out;
  switch (kind) {
    case Kind::kReasoning:
      return out + item_event("response.reasoning_text.delta", {{"delta", text}});
    case Kind::kText: {
      JsonObject json = {{"delta", text}, {"logprobs", JsonArray()}};
      add_timings(json, so_far_, telemetry_);
      return out + item_event("response.output_text.delta", std::move(json));
    }
    case Kind::kCall:
      break;
  }
  return out + item_event("response.function_call_arguments.delta", {{"delta", text}});
}

/// Events of how far it is, as llama-server has them. There may be many: they don't repeat the request.
std::string ResponsesAnswer::about_prompt(const Delta& delta) const {
  std::string out;
  if (!stream_ || !telemetry_.progress) return out;
  for (const engine::Progress& progress : delta.progress) {
    JsonObject json = {{"response", response("in_progress")}};
    add_progress(json, progress, telemetry_);
    out += event("response.in_progress", std::move(json));
  }
  return out;
}

std::string ResponsesAnswer::delta(Delta&& delta) {
  std::string out = begin() + about_prompt(delta);
  so_far_ = std::move(delta.so_far);
  if (!delta.reasoning.empty()) out += add(Kind::kReasoning, nullptr, delta.reasoning);
  if (!delta.text.empty()) out += add(Kind::kText, nullptr, delta.text);
  for (const CallDelta& call : delta.calls) out += add(Kind::kCall, &call, call.arguments);
  if (delta.end) {
    finish_ = delta.end->finish;
    reasoning_tokens_ += delta.end->reasoning_tokens;
  }
  if (delta.usage) so_far_ = std::move(delta.usage);
  return out;
}

bool ResponsesAnswer::keep(const JsonObject& response) {
  std::vector<ConversationItem> output;
  for (const Item& item : items_) output.push_back({.id = item.id, .json = dump(item_json(item, true))});
  JsonObject body = response;
  body.erase("output");
  return store_(head_.id, whole(body), std::move(output));
}

std::string ResponsesAnswer::end(const engine::Usage& usage, CacheReportList reports) {
  const bool finished = finish_ == sampling::Finish::kStop;
  if (open_) items_.back().cut = !finished;
  std::string out = begin() + close();
  JsonObject json = response(finished ? "completed" : "incomplete");
  if (!finished) json["incomplete_details"] = JsonObject{{"reason", "max_output_tokens"}};
  json["usage"] = JsonObject{{"input_tokens", usage.prompt_tokens},
                             {"input_tokens_details", JsonObject{{"cached_tokens", usage.cached_tokens}}},
                             {"output_tokens", usage.completion_tokens},
                             {"output_tokens_details", JsonObject{{"reasoning_tokens", reasoning_tokens_}}},
                             {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  if (store_) json["store"] = keep(json);
  if (Json report = cache_reports_json(reports, head_.reporting); !report.is_null())
    json["cache_report"] = std::move(report);
  if (!stream_) {
    add_timings(json, so_far_, telemetry_);
    return whole(json);
  }
  JsonObject last;
  add_timings(last, so_far_, telemetry_);
  return out + event(finished ? "response.completed" : "response.incomplete", std::move(last), whole(json));
}

std::string ResponsesAnswer::error(const RequestError& error) {
  if (!stream_) return openai_error(error);
  const std::string begun = begin();  // its client's library takes no end without a beginning
  JsonObject json = response("failed");
  if (open_) json["output"].get_array().back().get_object()["status"] = "incomplete";
  json["error"] = JsonObject{{"code", error.code().empty() ? "server_error" : error.code()}, {"message", error.what()}};
  return begun + event("response.failed", {}, whole(json));
}

}  // namespace coppice::server
