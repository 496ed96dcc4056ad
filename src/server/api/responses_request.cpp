#include "server/api/responses_request.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <limits>
#include <utility>

#include "server/api/json_fields.h"
#include "server/api/sampling_fields.h"
#include "server/api/structured_output.h"
#include "server/api/tool_fields.h"

namespace coppice::server {

namespace {

constexpr UnbuiltField kUnbuilt[] = {
    {"previous_response_id"}, {"conversation"}, {"background"}, {"prompt"}, {"top_logprobs"}};

void log_ignored(const std::string& what) {
  static std::atomic<bool> logged = false;
  if (!logged.exchange(true)) SPDLOG_INFO("/v1/responses: {} is ignored (said once; docs/api.md lists all)", what);
}

/// A string, or parts of these types.
std::vector<ContentPart> parts_of(const Json& content, const std::string& path) {
  if (content.is_string()) return {{std::string(content.get_string())}};
  const JsonArray* list = content.if_array();
  if (list == nullptr) throw RequestError::bad_field(path, "must be a string or a list of parts", "invalid_type");
  std::vector<ContentPart> parts;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    const JsonFields part(object_of(&(*list)[i], where), where + ".");
    const std::string type = part.required_string("type");
    if (type != "input_text" && type != "output_text" && type != "text" && type != "reasoning_text")
      throw RequestError::unsupported(part.path("type"),
                                      fmt::format("parts of the type \"{}\" are not supported", type));
    parts.push_back({part.required_string("text")});
  }
  return parts;
}

std::string text_of(const Json& content, const std::string& path) {
  std::string text;
  for (ContentPart& part : parts_of(content, path)) text += part.text;
  return text;
}

/// Items become messages: what the assistant thought, said and called in one turn are one.
class Turns {
 public:
  void add(const JsonFields& item) {
    const std::string type = item.string("type").value_or("message");
    if (type == "message") {
      add_message(item);
    } else if (type == "function_call") {
      assistant(!messages_.empty() && messages_.back().role == "assistant")
          .calls.push_back({.id = item.required_string("call_id"),
                            .name = item.required_string("name"),
                            .arguments = parse_arguments(item)});
    } else if (type == "function_call_output") {
      const Json* output = item.find("output");
      if (output == nullptr) throw RequestError::bad_field(item.path("output"), "is required", "missing_field");
      messages_.push_back({.role = "tool",
                           .content = parts_of(*output, item.path("output")),
                           .call_id = item.required_string("call_id")});
    } else if (type == "reasoning") {
      if (const Json* content = item.find("content")) reasoning_ += text_of(*content, item.path("content"));
    } else {
      throw RequestError::unsupported(item.path("type"),
                                      fmt::format("items of the type \"{}\" are not supported", type));
    }
  }
  void add_text(std::string role, std::string text) {
    messages_.push_back({.role = std::move(role), .content = {{std::move(text)}}});
  }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  Message& assistant(bool same_turn) {
    if (!same_turn) messages_.push_back({.role = "assistant"});
    messages_.back().reasoning += std::exchange(reasoning_, {});
    return messages_.back();
  }
  void add_message(const JsonFields& item) {
    const std::string role = item.required_string("role");
    const Json* content = item.find("content");
    if (content == nullptr) throw RequestError::bad_field(item.path("content"), "is required", "missing_field");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      throw RequestError::bad_field(item.path("role"),
                                    fmt::format("\"{}\" is none of system, developer, user and assistant", role));
    std::vector<ContentPart> parts = parts_of(*content, item.path("content"));
    if (role == "assistant") {
      assistant(false).content = std::move(parts);
    } else {
      messages_.push_back({.role = role == "user" ? role : "system", .content = std::move(parts)});
    }
  }

  std::vector<Message> messages_;
  std::string reasoning_;  ///< of the assistant's next message
};

std::vector<Message> parse_input(const JsonFields& f) {
  Turns turns;
  if (auto instructions = f.string("instructions"); instructions && !instructions->empty())
    turns.add_text("system", *std::move(instructions));
  const Json* input = f.find("input");
  if (input == nullptr) throw RequestError::bad_field("input", "is required", "missing_field");
  if (input->is_string()) {
    turns.add_text("user", std::string(input->get_string()));
    return turns.take();
  }
  const JsonArray* items = input->if_array();
  if (items == nullptr) throw RequestError::bad_field("input", "must be a string or a list of items", "invalid_type");
  if (items->empty()) throw RequestError::bad_field("input", "must not be empty");
  for (std::size_t i = 0; i < items->size(); ++i) {
    const std::string where = fmt::format("input[{}]", i);
    turns.add(JsonFields(object_of(&(*items)[i], where), where + "."));
  }
  return turns.take();
}

void parse_choice(const JsonFields& f, Tools& tools) {
  const Json* choice = f.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const std::string_view name = choice->get_string();
    if (name != "auto" && name != "none" && name != "required")
      throw RequestError::bad_field("tool_choice", "must be \"auto\", \"none\", \"required\" or name a function");
    tools.may_call = name != "none" || tools.specs.empty();
    tools.must_call = name == "required";
  } else {
    const JsonFields named(object_of(choice, "tool_choice"), "tool_choice.");
    if (named.required_string("type") != "function")
      throw RequestError::unsupported("tool_choice.type", "only \"function\" is supported");
    tools.must_call = true;
    tools.only = named.required_string("name");
  }
  check_choice(tools, "tool_choice", "parameters");
}

Tools parse_tool_list(const JsonFields& f) {
  Tools tools;
  parse_flat_tools(f, "function", "parameters", log_ignored, tools);
  parse_choice(f, tools);
  tools.parallel = f.boolean("parallel_tool_calls").value_or(true) && tools.only.empty();
  const Json* reasoning = f.find("reasoning");
  if (reasoning == nullptr) return tools;
  if (const auto effort = JsonFields(object_of(reasoning, "reasoning"), "reasoning.").string("effort")) {
    tools.variables["reasoning_effort"] = dump(Json(*effort));
    tools.thinks = *effort != "none";
  }
  return tools;
}

/// "text": {"format": {"type", "schema"}}
void parse_form(const JsonFields& f, GenerationRequest& r) {
  const Json* text = f.find("text");
  const Json* format = text == nullptr ? nullptr : JsonFields(object_of(text, "text"), "text.").find("format");
  if (format == nullptr) return;
  const JsonFields form(object_of(format, "text.format"), "text.format.");
  const std::string type = form.required_string("type");
  if (type == "text") return;
  const Json* schema = form.find("schema");
  const Json any = JsonObject{{"type", "object"}};
  if (type == "json_object") schema = &any;
  if (type != "json_object" && type != "json_schema")
    throw RequestError::unsupported("text.format.type",
                                    "only \"text\", \"json_object\" and \"json_schema\" are supported");
  if (schema == nullptr) throw RequestError::bad_field("text.format.schema", "is required", "missing_field");
  if (!r.tools.specs.empty() && r.tools.may_call)
    throw RequestError::unsupported("text.format", "not supported together with tools that may be called");
  r.grammar = grammar::Constraint{.source = schema_source(*schema, "text.format"), .field = "text.format"};
}

/// What the answer tells of its request.
JsonObject repeated(const JsonFields& f) {
  JsonObject json = {{"instructions", nullptr},
                     {"metadata", JsonObject()},
                     {"parallel_tool_calls", true},
                     {"tool_choice", "auto"},
                     {"tools", JsonArray()},
                     {"reasoning", nullptr},
                     {"text", JsonObject{{"format", JsonObject{{"type", "text"}}}}}};
  for (auto& field : json)
    if (const Json* value = f.find(std::string(field.key()).c_str())) field.value() = *value;
  return json;
}

}  // namespace

GenerationRequest parse_responses_request(const JsonObject& body, const RequestLimits& limits) {
  const JsonFields f(body);
  refuse_unbuilt(f, kUnbuilt);
  if (f.string("truncation").value_or("disabled") != "disabled")
    throw RequestError::unsupported("truncation", "only \"disabled\" is supported");
  GenerationRequest r;
  r.input_field = "input";
  r.model = f.string("model").value_or("");
  apply_defaults(limits.defaults, r);
  parse_sampling_fields(f, limits, r);
  r.messages = parse_input(f);
  r.tools = parse_tool_list(f);
  parse_form(f, r);
  if (const auto most = f.integer("max_output_tokens", 1, std::numeric_limits<std::int32_t>::max()))
    r.max_tokens = static_cast<std::int32_t>(*most);
  if (!r.max_tokens) r.max_tokens = limits.defaults.max_tokens;
  r.stream = f.boolean("stream").value_or(false);
  parse_engine_fields(f, r);
  r.own = std::make_shared<const JsonObject>(repeated(f));
  return r;
}

}  // namespace coppice::server
