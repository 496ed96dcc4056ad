#include "server/api/openai/openai_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "check/assert.h"
#include "server/api/base/telemetry.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

const char* finish_name(std::optional<sampling::Finish> finish, bool calls) {
  if (!finish) return nullptr;
  if (*finish != sampling::Finish::kStop) return "length";
  return calls ? "tool_calls" : "stop";
}

const char* error_type(RequestError::Kind kind) {
  switch (kind) {
    case RequestError::Kind::kInvalid:
      return "invalid_request_error";
    case RequestError::Kind::kUnavailable:
      return "unavailable_error";
    case RequestError::Kind::kRateLimited:
      return "rate_limit_error";
    case RequestError::Kind::kServer:
      break;
  }
  return "server_error";
}

Json or_null(const char* s) {
  return s == nullptr ? Json(nullptr) : Json(s);
}

JsonObject logprobs_json(Endpoint endpoint, std::span<const sampling::LogprobEntry> entries, std::int64_t& offset) {
  return endpoint == Endpoint::kChat ? chat_logprobs(entries) : completion_logprobs(entries, offset);
}

JsonObject head_json(const AnswerHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

/// llama-server's, for a look at what the template made of a chat.
JsonObject verbose_json(const AnswerHead& head) {
  if (head.prompts.size() == 1) return {{"prompt", head.prompts.front()}};
  return {{"prompt", JsonArray(head.prompts.begin(), head.prompts.end())}};
}

/// Of the choice's prompt. REQUIRES: there are echoes.
const std::string& echo_of(const std::vector<std::string>& echoes, std::size_t choice, std::size_t n_choices) {
  return echoes[choice / (n_choices / echoes.size())];
}

/// A JSON string without its quotes, or an array without its brackets.
std::string inside(const std::string& json) {
  return json.substr(1, json.size() - 2);
}

/// A chunk's "delta".
JsonObject call_json(const CallDelta& call) {
  JsonObject json = {{"index", call.index}}, function;
  if (!call.name.empty()) {
    json["id"] = call.id;
    json["type"] = "function";
    function["name"] = call.name;
  }
  function["arguments"] = call.arguments;
  json["function"] = std::move(function);
  return {{"tool_calls", JsonArray{std::move(json)}}};
}

std::string event(const std::string& data) {
  return "data: " + data + "\n\n";
}

}  // namespace

std::string openai_error(const RequestError& error) {
  const auto or_nothing = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  JsonObject json = {{"message", error.what()},
                     {"type", error_type(error.kind())},
                     {"param", or_nothing(error.field())},
                     {"code", or_nothing(error.code())}};
  return dump(JsonObject{{"error", std::move(json)}});
}

JsonObject usage_json(const engine::Usage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.prompt_tokens + u.completion_tokens},
          {"prompt_tokens_details", JsonObject{{"cached_tokens", u.cached_tokens}}}};
}

JsonObject chat_usage_json(const engine::Usage& usage, std::int64_t reasoning_tokens) {
  JsonObject json = usage_json(usage);
  json["completion_tokens_details"] = JsonObject{{"reasoning_tokens", reasoning_tokens}};
  return json;
}

OpenAiBody::OpenAiBody(Endpoint endpoint, AnswerHead head, bool with_logprobs, PromptLogprobs of_prompt,
                       Telemetry telemetry)
    : endpoint_(endpoint),
      head_(std::move(head)),
      with_logprobs_(with_logprobs),
      of_prompt_(of_prompt),
      telemetry_(telemetry),
      choices_(static_cast<std::size_t>(head_.n_choices)) {
  std::vector<List> lists;
  std::int64_t offset = 0;
  if (with_logprobs) {
    for (const auto& field : logprobs_json(endpoint_, {}, offset))
      if (field.value().is_array()) lists.push_back({std::string(field.key()), ""});  // chat has a "refusal" too
  }
  for (int i = 0; i < head_.n_prompts; ++i) {
    const bool placed = of_prompt_.in_echo >= 0;
    prompts_.push_back({TokenPlaces(placed ? head_.echoes.at(static_cast<std::size_t>(i)) : ""), lists, ""});
  }
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].logprobs = lists;
    if (of_prompt_.in_echo >= 0) choices_[i].offset = characters(echo_of(head_.echoes, i, choices_.size()));
  }
  for (const std::string& prompt : head_.prompts) bytes_ += prompt.size();
  for (std::string& echo : head_.echoes) {
    echo = inside(dump(Json(echo)));
    bytes_ += echo.size() * (choices_.size() / head_.echoes.size());
  }
}

void OpenAiBody::append(std::string& to, const std::string& text, std::size_t times) {
  to += text;
  bytes_ += text.size() * times;
}

void OpenAiBody::append_items(std::vector<List>& to, const JsonObject& news, std::size_t times) {
  for (auto& [name, items] : to) append(items, (items.empty() ? "" : ",") + inside(dump(news.at(name))), times);
}

void OpenAiBody::add_prompt(Prompt& prompt, std::span<const sampling::PromptToken> tokens) {
  if (of_prompt_.in_echo >= 0) {
    std::vector<std::int64_t> offsets;
    for (const auto& token : tokens) offsets.push_back(prompt.places.next(token.entry.chosen.bytes));
    append_items(prompt.logprobs, echo_logprobs(tokens, of_prompt_.in_echo, offsets), samples());
  }
  if (of_prompt_.in_list < 0) return;
  const std::size_t times = endpoint_ == Endpoint::kChat ? 1 : samples();
  append(prompt.list, (prompt.list.empty() ? "" : ",") + inside(dump(prompt_logprobs(tokens, of_prompt_.in_list))),
         times);
}

std::string OpenAiBody::delta(Delta&& delta) {
  const auto index = static_cast<std::size_t>(delta.choice);
  COPPICE_ASSERT(index < choices_.size());
  Choice& choice = choices_[index];
  if (!delta.prompt.empty()) add_prompt(prompts_.at(index / samples()), delta.prompt);
  append(choice.text, inside(dump(Json(delta.text))));
  if (!delta.reasoning.empty()) append(choice.reasoning, inside(dump(Json(delta.reasoning))));
  add_calls(choice, delta.calls);
  if (!delta.logprobs.empty()) append_items(choice.logprobs, logprobs_json(endpoint_, delta.logprobs, choice.offset));
  if (delta.end) {
    choice.finish = delta.end->finish;
    choice.cut_call = delta.end->cut_call;
    reasoning_tokens_ += delta.end->reasoning_tokens;
  }
  if (delta.usage) of_last_prompt_ = std::move(delta.usage);
  return "";
}

void OpenAiBody::add_calls(Choice& choice, std::span<const CallDelta> calls) {
  for (const CallDelta& news : calls) {
    if (news.index >= choice.calls.size()) choice.calls.resize(news.index + 1);
    Call& call = choice.calls[news.index];
    append(call.id, news.id);
    append(call.name, news.name);
    append(call.arguments, inside(dump(Json(news.arguments))));
  }
}

/// A chat's, without the brace at the end.
void OpenAiBody::append_message(std::string& json, const Choice& choice) const {
  json += R"("message":{"role":"assistant","content":)";
  json += choice.text.empty() && !choice.calls.empty() ? "null" : '"' + choice.text + '"';
  if (!choice.reasoning.empty()) json += R"(,"reasoning_content":")" + choice.reasoning + '"';
  json += R"(,"refusal":null)";
  if (choice.calls.empty()) return;
  json += R"(,"tool_calls":)";
  for (std::size_t i = 0; i < choice.calls.size(); ++i) {
    const Call& call = choice.calls[i];
    json += fmt::format(R"({}{{"id":"{}","type":"function","function":{{"name":{},"arguments":"{}"}}}})",
                        i == 0 ? '[' : ',', call.id, dump(Json(call.name)), call.arguments);
  }
  json += ']';
}

void OpenAiBody::append_choice(std::string& json, std::size_t index) const {
  const bool chat = endpoint_ == Endpoint::kChat;
  const Choice& choice = choices_[index];
  const Prompt& prompt = prompts_[index / samples()];
  json += fmt::format(R"({{"index":{},)", index);
  if (chat) {
    append_message(json, choice);
    json += '}';
  } else {
    json += R"("text":")";
    if (!head_.echoes.empty()) json += echo_of(head_.echoes, index, choices_.size());
    json += choice.text + '"';
  }
  json += R"(,"logprobs":)";
  if (with_logprobs_) {
    for (std::size_t i = 0; i < choice.logprobs.size(); ++i) {
      const auto& [name, items] = choice.logprobs[i];
      const std::string& of_prompt = prompt.logprobs[i].items;
      json += fmt::format(R"({}"{}":[)", i == 0 ? "{" : ",", name) + of_prompt;
      json += (of_prompt.empty() || items.empty() ? "" : ",") + items + "]";
    }
    json += chat ? R"(,"refusal":null})" : "}";
  } else {
    json += "null";
  }
  if (!chat && of_prompt_.in_list >= 0) json += R"(,"prompt_logprobs":[)" + prompt.list + "]";
  json += R"(,"finish_reason":)" +
          dump(or_null(finish_name(choice.finish, !choice.calls.empty() && !choice.cut_call))) + "}";
}

std::string OpenAiBody::end(const engine::Usage& usage, CacheReportList reports) {
  const Json cache_report = cache_reports_json(reports, head_.reporting);
  std::string json = dump(head_json(head_, endpoint_ == Endpoint::kChat ? "chat.completion" : "text_completion"));
  json.reserve(json.size() + bytes_ + 200 * choices_.size() + 500);
  json.back() = ',';
  json += R"("choices":)";
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    json += i == 0 ? '[' : ',';
    append_choice(json, i);
  }
  json += "]";
  if (endpoint_ == Endpoint::kChat && of_prompt_.in_list >= 0)
    json += R"(,"prompt_logprobs":[)" + prompts_.front().list + "]";
  const bool chat = endpoint_ == Endpoint::kChat;
  json += R"(,"usage":)" + dump(chat ? chat_usage_json(usage, reasoning_tokens_) : usage_json(usage));
  if (!cache_report.is_null()) json += R"(,"cache_report":)" + dump(cache_report);
  if (!head_.prompts.empty()) json += R"(,"__verbose":)" + dump(verbose_json(head_));
  JsonObject timings;
  if (head_.n_prompts == 1) add_timings(timings, of_last_prompt_, telemetry_);
  if (!timings.empty()) json += ',' + inside(dump(std::move(timings)));
  choices_.clear();  // the client may take long to read it: it is held once
  prompts_.clear();
  bytes_ = 0;
  return json += '}';
}

OpenAiStream::OpenAiStream(Endpoint endpoint, AnswerHead head, bool with_logprobs, bool with_usage, Telemetry telemetry)
    : endpoint_(endpoint),
      head_(std::move(head)),
      with_logprobs_(with_logprobs),
      with_usage_(with_usage),
      telemetry_(telemetry),
      choices_(static_cast<std::size_t>(head_.n_choices)) {}

std::string OpenAiStream::open(int choice, const std::string* echo) const {
  if (endpoint_ == Endpoint::kChat) return chunk(choice, JsonObject{{"role", "assistant"}, {"content", nullptr}});
  return echo == nullptr || echo->empty() ? "" : chunk(choice, Json(*echo));
}

/// Events of how far it is.
std::string OpenAiStream::about_prompt(const Delta& delta) const {
  std::string out;
  if (!telemetry_.progress) return out;
  for (const engine::Progress& progress : delta.progress) {
    JsonObject json = chunk_json(delta.choice, endpoint_ == Endpoint::kChat ? Json(JsonObject()) : Json(""));
    add_progress(json, progress, telemetry_);
    out += event(dump(std::move(json)));
  }
  return out;
}

std::string OpenAiStream::delta(Delta&& delta) {
  const bool chat = endpoint_ == Endpoint::kChat;
  const auto index = static_cast<std::size_t>(delta.choice);
  COPPICE_ASSERT(index < choices_.size());
  Choice& choice = choices_[index];
  std::string out;
  if (!std::exchange(choice.opened, true))
    out += open(delta.choice, head_.echoes.empty() ? nullptr : &echo_of(head_.echoes, index, choices_.size()));
  out += about_prompt(delta);
  if (!delta.reasoning.empty()) out += chunk(delta.choice, JsonObject{{"reasoning_content", delta.reasoning}});
  if (!delta.text.empty() || !delta.logprobs.empty()) {
    Json content = chat ? Json(JsonObject{{"content", delta.text}}) : Json(delta.text);
    Json logprobs;
    if (with_logprobs_) logprobs = logprobs_json(endpoint_, delta.logprobs, choice.offset);
    JsonObject json = chunk_json(delta.choice, std::move(content), std::move(logprobs));
    add_timings(json, delta.so_far, telemetry_);
    out += event(dump(std::move(json)));
  }
  for (const CallDelta& call : delta.calls) out += chunk(delta.choice, call_json(call));
  choice.calls |= !delta.calls.empty();
  if (delta.end) {
    reasoning_tokens_ += delta.end->reasoning_tokens;
    out += chunk(delta.choice, chat ? Json(JsonObject()) : Json(""), nullptr,
                 finish_name(delta.end->finish, choice.calls && !delta.end->cut_call));
  }
  if (delta.usage) of_last_prompt_ = std::move(delta.usage);
  return out;
}

JsonObject OpenAiStream::chunk_json(int choice, Json content, Json logprobs, const char* finish) const {
  const bool chat = endpoint_ == Endpoint::kChat;
  JsonObject json = head_json(head_, chat ? "chat.completion.chunk" : "text_completion");
  JsonObject entry = {{"index", choice}};
  entry[chat ? "delta" : "text"] = std::move(content);
  entry["logprobs"] = std::move(logprobs);
  entry["finish_reason"] = or_null(finish);
  json["choices"] = JsonArray{std::move(entry)};
  if (with_usage_) json["usage"] = nullptr;
  return json;
}

std::string OpenAiStream::chunk(int choice, Json content, Json logprobs, const char* finish) const {
  return event(dump(chunk_json(choice, std::move(content), std::move(logprobs), finish)));
}

std::string OpenAiStream::end(const engine::Usage& usage, CacheReportList reports) {
  const Json cache_report = cache_reports_json(reports, head_.reporting);
  JsonObject json = head_json(head_, endpoint_ == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = JsonArray();
  const std::size_t n_fields = json.size();
  if (with_usage_)
    json["usage"] = endpoint_ == Endpoint::kChat ? chat_usage_json(usage, reasoning_tokens_) : usage_json(usage);
  if (!cache_report.is_null()) json["cache_report"] = cache_report;
  if (!head_.prompts.empty()) json["__verbose"] = verbose_json(head_);
  if (head_.n_prompts == 1) add_timings(json, of_last_prompt_, telemetry_);
  return (json.size() > n_fields ? event(dump(std::move(json))) : "") + event("[DONE]");
}

std::string OpenAiStream::error(const RequestError& error) {
  return event(openai_error(error));
}

}  // namespace coppice::server
