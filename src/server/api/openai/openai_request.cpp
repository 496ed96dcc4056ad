#include "server/api/openai/openai_request.h"

#include <fmt/format.h>

#include <limits>

#include "port/turn.h"
#include "server/api/base/json_fields.h"
#include "server/api/base/left_out.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/base/structured_output.h"
#include "server/api/base/telemetry.h"
#include "server/api/base/tool_fields.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace {

bool is_string(const Json& value, std::string_view expected) {
  return value.is_string() && std::string_view(value.get_string()) == expected;
}

/// Fields whose silent loss would change what the client gets: better refused than ignored.
constexpr UnbuiltField kUnbuiltChat[] = {
    {"functions"},     {"audio"},   {"web_search_options"},  {"documents"}, {"chat_template"}, {"mm_processor_kwargs"},
    {"prompt_embeds"}, {"n_probs"}, {"post_sampling_probs"},
};

Message parse_message(const JsonObject& message, const std::string& where, PictureFields& pictures) {
  const JsonFields f(message, where + ".");
  auto role = f.string("role");
  if (!role || role->empty()) throw RequestError::bad_field(where + ".role", "is required", "missing_field");
  if (*role == "function")
    throw RequestError::unsupported(where + ".role", "use the role \"tool\" instead of \"function\"");
  for (const char* name : {"function_call", "audio"})
    if (const Json* value = f.find(name); value && !is_empty(*value)) throw RequestError::unsupported(f.path(name));
  // OpenAI's newer name for the system role; templates know the older one.
  if (*role == "developer") role = "system";
  // Many templates leave out what they don't know.
  if (*role != "system" && *role != "user" && *role != "assistant" && *role != "tool")
    throw RequestError::bad_field(where + ".role",
                                  fmt::format("\"{}\" is none of system, developer, user, assistant and tool", *role));
  Message result{.role = *std::move(role)};
  if (result.role == "assistant") {
    result.calls = parse_calls(f);
    result.reasoning = f.string("reasoning_content").value_or("");
  } else if (result.role == "tool") {
    result.call_id = f.string("tool_call_id").value_or("");
  }
  const Json* content = f.find("content");
  if (content != nullptr) parse_content(*content, where + ".content", pictures, result);
  if (content == nullptr && (result.role == "user" || result.role == "system"))
    throw RequestError::bad_field(where + ".content", "is required", "missing_field");
  return result;
}

/// Chat says `logprobs: true, top_logprobs: n`, completions say `logprobs: n`. Both become n, or -1 for none.
int parse_logprobs(const JsonFields& f, Endpoint endpoint) {
  constexpr int kMax = sampling::kMaxTopLogprobs;
  if (endpoint == Endpoint::kCompletions) return static_cast<int>(f.integer("logprobs", 0, kMax).value_or(-1));
  const bool wanted = f.boolean("logprobs").value_or(false);
  const auto top = f.integer("top_logprobs", 0, kMax);
  if (top && *top > 0 && !wanted) throw RequestError::bad_field("top_logprobs", "needs 'logprobs' to be true");
  return wanted ? static_cast<int>(top.value_or(0)) : -1;
}

void parse_stream(const JsonFields& f, GenerationRequest& r) {
  r.stream = f.boolean("stream").value_or(false);
  const Json* options = f.find("stream_options");
  if (options == nullptr) return;
  const JsonObject* object = options->if_object();
  if (object == nullptr) throw RequestError::bad_field("stream_options", "must be an object", "invalid_type");
  if (!r.stream) throw RequestError::bad_field("stream_options", "needs 'stream' to be true");
  r.stream_usage = JsonFields(*object, "stream_options.").boolean("include_usage").value_or(false);
}

void parse_completion_input(const JsonFields& f, const RequestLimits& limits, GenerationRequest& r) {
  r.input_field = "prompt";
  r.prompts = parse_prompts(f, limits);
  r.echo = f.boolean("echo").value_or(false);
  r.add_special = f.boolean("add_special_tokens").value_or(true);
}

void parse_chat_input(const JsonFields& f, const RequestLimits& limits, GenerationRequest& r) {
  const Json* messages = f.find("messages");
  if (messages == nullptr) throw RequestError::bad_field("messages", "is required", "missing_field");
  r.messages = parse_messages(*messages, limits.most_pictures);
  r.turn_end = parse_turn_end(f, r.messages, limits.continues_assistant);
  r.tools = parse_tools(f);
  if (r.turn_end == text::TurnEnd::kContinue && !r.tools.specs.empty() && r.tools.may_call)
    throw RequestError::unsupported("continue_final_message", "not supported together with tools that may be called");
  settle_form(r.tools, r.grammar);
  // The template writes these tokens.
  if (f.boolean("add_special_tokens").value_or(false))
    throw RequestError::unsupported("add_special_tokens", "only false is supported for chats");
  if (f.boolean("echo").value_or(false)) throw RequestError::unsupported("echo", "only completions have it");
}

/// vLLM's prompt_logprobs; and the echo's, which OpenAI's completions have.
void parse_prompt_logprobs(const JsonFields& f, GenerationRequest& r) {
  r.prompt_logprobs = static_cast<int>(f.integer("prompt_logprobs", 0, sampling::kMaxTopLogprobs).value_or(-1));
  r.sampling.logprobs_of_end = r.echo && r.sampling.logprobs >= 0;
  if (r.stream && r.prompt_logprobs >= 0)
    throw RequestError::unsupported("prompt_logprobs", "not supported together with 'stream'");
  if (r.stream && r.sampling.logprobs_of_end)
    throw RequestError::unsupported("echo", "not supported together with 'logprobs' and 'stream'");
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const auto from = f.integer("prompt_logprobs_from", 0, kMax);
  if (from && r.prompt_logprobs < 0 && !r.sampling.logprobs_of_end)
    throw RequestError::bad_field("prompt_logprobs_from", "needs 'prompt_logprobs', or 'echo' with 'logprobs'");
  r.logprobs_from = static_cast<std::int32_t>(from.value_or(0));
}

}  // namespace

void refuse_unbuilt_fields(const JsonFields& f) {
  refuse_unbuilt(f, kUnbuiltChat);
  refuse_unbuilt_samplers(f);
  if (const Json* value = f.find("function_call"); value && !is_string(*value, "none"))
    throw RequestError::unsupported("function_call", "use 'tools' and 'tool_choice'");
  if (const Json* modalities = f.find("modalities"); modalities && *modalities != Json(JsonArray{"text"}))
    throw RequestError::unsupported("modalities", "only [\"text\"] is supported");
  if (f.string("suffix").value_or("") != "") throw RequestError::unsupported("suffix");
}

namespace {

/// A string, or parts of text: Mistral's `thinking`.
std::string thinking_of(const JsonFields& part) {
  const Json* thinking = part.find("thinking");
  if (thinking == nullptr) return "";
  std::string text;
  PictureFields none(0);
  for (const ContentPart& piece : parse_content(*thinking, part.path("thinking"), none)) text += piece.text;
  return text;
}

}  // namespace

std::vector<ContentPart> parse_content(const Json& content, const std::string& path, PictureFields& pictures) {
  Message message;
  parse_content(content, path, pictures, message);
  return std::move(message.content);
}

void parse_content(const Json& content, const std::string& path, PictureFields& pictures, Message& to) {
  if (content.is_string()) {
    to.content.push_back({to_string(content)});
    return;
  }
  const JsonArray* parts = content.if_array();
  if (parts == nullptr) throw RequestError::bad_field(path, "must be a string or a list of parts", "invalid_type");
  for (std::size_t i = 0; i < parts->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    if ((*parts)[i].is_string()) {
      to.content.push_back({to_string((*parts)[i])});
      continue;
    }
    const JsonFields part(object_of(&(*parts)[i], where), where + ".");
    const std::string type = part.required_string("type");
    if (type == "text") {
      to.content.push_back({part.required_string("text")});
    } else if (type == "refusal" && to.role == "assistant") {
      to.content.push_back({part.required_string("refusal")});
    } else if (type == "thinking" && to.role == "assistant") {
      to.reasoning += thinking_of(part);
    } else if (to.role == "tool" && !(PictureFields::is_picture(type) && pictures.sees())) {
      to.content.push_back({left_out("/v1/chat/completions", type)});
    } else if (auto picture = pictures.part(part, type)) {
      to.content.push_back(*std::move(picture));
    } else {
      throw RequestError::unsupported(where + ".type", unsupported_part(type));
    }
  }
}

std::vector<Message> parse_messages(const Json& messages, int most_pictures) {
  const JsonArray* list = messages.if_array();
  if (list == nullptr) throw RequestError::bad_field("messages", "must be a list", "invalid_type");
  if (list->empty()) throw RequestError::bad_field("messages", "must not be empty");
  std::vector<Message> result;
  PictureFields pictures(most_pictures);
  for (std::size_t i = 0; i < list->size(); ++i) {
    port::between_steps();
    const std::string where = fmt::format("messages[{}]", i);
    result.push_back(parse_message(object_of(&(*list)[i], where), where, pictures));
  }
  return result;
}

text::TurnEnd parse_turn_end(const JsonFields& f, std::span<const Message> messages, bool continues) {
  const auto open = f.boolean("add_generation_prompt");
  const auto asked = f.boolean("continue_final_message");
  const Message& last = messages.back();
  if (!asked.value_or(continues && !open && last.role == "assistant"))
    return open.value_or(true) ? text::TurnEnd::kOpenTurn : text::TurnEnd::kClosed;
  const char* field = asked ? "continue_final_message" : "messages";
  if (open.value_or(false)) throw RequestError::bad_field(field, "and 'add_generation_prompt' exclude each other");
  if (last.role != "assistant") throw RequestError::bad_field(field, "needs a last message of the role \"assistant\"");
  if (messages.size() < 2) throw RequestError::bad_field(field, "needs a message before the one that goes on");
  if (!last.calls.empty()) throw RequestError::bad_field(field, "a message that goes on may hold no calls");
  if (!asked && messages[messages.size() - 2].role == "assistant")
    throw RequestError::bad_field(field, "two messages of the assistant at the end: it is open which of them goes on");
  return text::TurnEnd::kContinue;
}

GenerationRequest parse_openai_request(Endpoint endpoint, const JsonObject& body, const RequestLimits& limits) {
  const JsonFields f(body);
  GenerationRequest r;
  refuse_unbuilt_fields(f);
  r.model = f.string("model").value_or("");
  apply_defaults(limits.defaults, r);
  parse_sampling_fields(f, limits, r);
  r.sampling.logprobs = parse_logprobs(f, endpoint);
  r.grammar = parse_structured_output(f);
  if (endpoint == Endpoint::kChat) {
    parse_chat_input(f, limits, r);
  } else {
    parse_completion_input(f, limits, r);
  }
  r.n = static_cast<int>(f.integer("n", 1, limits.max_choices).value_or(1));
  if (const auto best_of = f.integer("best_of", 1, limits.max_choices); best_of && *best_of != r.n)
    throw RequestError::unsupported("best_of", "only a value equal to 'n' is supported");
  parse_stream(f, r);
  parse_prompt_logprobs(f, r);
  parse_max_tokens(f, {"max_completion_tokens", "max_tokens", "n_predict"}, r.echo || r.prompt_logprobs >= 0 ? 0 : 1,
                   r);
  if (r.max_tokens && r.sampling.min_tokens > *r.max_tokens)
    throw RequestError::bad_field("min_tokens", fmt::format("must be at most 'max_tokens', {}", *r.max_tokens));
  r.prompt_text = f.boolean("verbose").value_or(false);
  parse_engine_fields(f, r);
  r.telemetry = parse_telemetry(f);
  f.string("user");  // a label for abuse reports: its type is checked, its value has no use here
  return r;
}

}  // namespace coppice::server
