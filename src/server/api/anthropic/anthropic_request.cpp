#include "server/api/anthropic/anthropic_request.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "port/turn.h"
#include "server/api/anthropic/cache_control.h"
#include "server/api/base/ignored_fields.h"
#include "server/api/base/json_fields.h"
#include "server/api/base/left_out.h"
#include "server/api/base/picture_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/base/structured_output.h"
#include "server/api/base/tool_fields.h"
#include "server/jobs/prompt_text.h"

namespace coppice::server {

namespace {

/// A client's own count of what it spends, other with each request: kept, no prompt would be found in the cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

constexpr const char* kPath = "/v1/messages";

/// A chat as it is read.
struct Chat {
  std::vector<Message>& messages;
  PinMarks marks;
  PictureFields pictures;
  bool keeps_billing = false;
};

[[noreturn]] void refuse_block(const std::string& path, const std::string& type) {
  throw RequestError::unsupported(path + ".type", unsupported_part(type));
}

/// Calls on_text(text, fields) for each text block, and on_block(fields, type, path) for each other one. A string is
/// one text block's text, with null for fields.
template <class Text, class Block>
void each_block(const Json& content, const std::string& path, Text&& on_text, Block&& on_block) {
  if (content.is_string()) return on_text(std::string(content.get_string()), nullptr);
  const JsonArray* list = content.if_array();
  if (list == nullptr) throw RequestError::bad_field(path, "must be a string or a list of blocks", "invalid_type");
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    if ((*list)[i].is_string()) {
      on_text(std::string((*list)[i].get_string()), nullptr);
      continue;
    }
    const JsonFields block(object_of(&(*list)[i], where), where + ".");
    const std::string type = block.required_string("type");
    if (type == "text") {
      on_text(block.required_string("text"), &block);
    } else {
      on_block(block, type, where);
    }
  }
}

/// A tool's result.
std::vector<ContentPart> result_of(const Json& content, const std::string& path, PictureFields& pictures) {
  std::vector<ContentPart> parts;
  each_block(
      content, path, [&](std::string text, const JsonFields*) { parts.push_back({std::move(text)}); },
      [&](const JsonFields& block, const std::string& type, const std::string&) {
        auto picture = pictures.sees() ? pictures.part(block, type) : std::nullopt;
        parts.push_back(picture ? *std::move(picture) : ContentPart{left_out(kPath, type)});
      });
  return parts;
}

/// Nothing is added of one without text: templates may refuse it.
void add_system(const Json& content, const std::string& path, Chat& chat) {
  Message message{.role = "system"};
  const std::size_t marked = chat.marks.size();
  const auto on_text = [&](std::string text, const JsonFields* block) {
    const bool billing = !chat.keeps_billing && text.starts_with(kBillingHeader);
    if (!billing && !text.empty()) {
      if (!message.content.empty()) text.insert(0, "\n\n");
      message.content.push_back({std::move(text)});
    }
    if (block != nullptr) chat.marks.look(*block, {.parts = message.content.size()});
  };
  each_block(content, path, on_text,
             [](const JsonFields&, const std::string& type, const std::string& where) { refuse_block(where, type); });
  const bool empty = message.content.empty();
  if (!empty) chat.messages.push_back(std::move(message));
  chat.marks.place(marked, chat.messages.size(), empty);
}

text::ChatCall parse_tool_use(const JsonFields& block) {
  text::ChatCall call{.id = block.string("id").value_or(""), .name = block.required_string("name"), .arguments = {}};
  parse_arguments(block, "input", call);
  return call;
}

Message parse_tool_result(const JsonFields& block, PictureFields& pictures) {
  Message message{.role = "tool", .call_id = block.required_string("tool_use_id")};
  if (const Json* content = block.find("content"))
    message.content = result_of(*content, block.path("content"), pictures);
  if (block.boolean("is_error").value_or(false)) message.content.insert(message.content.begin(), {"Error: "});
  return message;
}

/// Results of tools become messages of their own, before the rest of the user's.
void add_turn(const JsonFields& f, Chat& chat) {
  std::vector<Message>& to = chat.messages;
  Message message{.role = f.required_string("role")};
  const Json nothing = "";
  const Json* content = f.find("content");
  if (content == nullptr && message.role == "assistant") content = &nothing;
  if (content == nullptr) throw RequestError::bad_field(f.path("content"), "is required", "missing_field");
  if (message.role == "system") return add_system(*content, f.path("content"), chat);
  const bool assistant = message.role == "assistant";
  if (!assistant && message.role != "user")
    throw RequestError::bad_field(f.path("role"),
                                  fmt::format("\"{}\" is none of user, assistant and system", message.role));
  bool results = false;
  const std::size_t marked = chat.marks.size();
  const auto mark = [&](const JsonFields& block) {
    chat.marks.look(block, {.parts = message.content.size(), .calls = message.calls.size()});
  };
  each_block(
      *content, f.path("content"),
      [&](std::string text, const JsonFields* block) {
        message.content.push_back({std::move(text)});
        if (block != nullptr) mark(*block);
      },
      [&](const JsonFields& block, const std::string& type, const std::string& where) {
        if (assistant && type == "tool_use") {
          message.calls.push_back(parse_tool_use(block));
          mark(block);
        } else if (assistant && type == "thinking") {
          message.reasoning += block.required_string("thinking");
        } else if (!assistant && type == "tool_result") {
          to.push_back(parse_tool_result(block, chat.pictures));
          results = true;
          chat.marks.look(block, {.messages = to.size()});
        } else if (auto picture = assistant ? std::nullopt : chat.pictures.part(block, type)) {
          message.content.push_back(*std::move(picture));
          mark(block);
        } else if (!(assistant && type == "redacted_thinking")) {
          refuse_block(where, type);
        }
      });
  if (!message.content.empty() || !results) to.push_back(std::move(message));
  chat.marks.place(marked, to.size());
}

void parse_turns(const JsonFields& f, Chat& chat) {
  if (const Json* system = f.find("system")) add_system(*system, "system", chat);
  const JsonArray& turns = array_of(f.find("messages"), "messages");
  if (turns.empty()) throw RequestError::bad_field("messages", "must not be empty");
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    add_turn(JsonFields(object_of(&turns[i], where), where + "."), chat);
  }
  if (chat.messages.empty()) throw RequestError::bad_field("messages", "hold no text");
}

/// They stand before the messages, but behind the system's text in many templates. So that belongs to what is pinned.
void mark_tools(const JsonFields& f, const Tools& tools, Chat& chat) {
  const std::size_t system = chat.messages.front().role == "system" ? 1 : 0;
  const Json* list = f.find("tools");
  if (list == nullptr) return;
  std::size_t known = 0;  // those that run elsewhere are left out
  const JsonArray& array = array_of(list, "tools");
  for (std::size_t i = 0; i < array.size(); ++i) {
    port::between_steps();
    const std::string where = fmt::format("tools[{}].", i);
    const JsonFields tool(object_of(&array[i], where), where);
    known += known < tools.specs.size() && tool.string("name").value_or("") == tools.specs[known].name ? 1 : 0;
    chat.marks.look(tool, {.tools = known, .messages = system});
  }
}

void parse_anthropic_choice(const JsonFields& f, Tools& tools) {
  const Json* value = f.find("tool_choice");
  if (value == nullptr) return;
  const JsonFields choice(object_of(value, "tool_choice"), "tool_choice.");
  const std::string type = choice.required_string("type");
  tools.may_call = type != "none" || tools.specs.empty();
  tools.must_call = type == "any" || type == "tool";
  if (type != "auto" && type != "none" && !tools.must_call)
    throw RequestError::bad_field("tool_choice.type", "must be \"auto\", \"any\", \"tool\" or \"none\"");
  if (type == "tool") tools.only = choice.required_string("name");
  tools.parallel = !choice.boolean("disable_parallel_tool_use").value_or(false) && tools.only.empty();
  check_choice(tools, "tool_choice.name", "input_schema");
}

Tools parse_tool_list(const JsonFields& f) {
  Tools tools;
  parse_flat_tools(f, "custom", "input_schema", [](const std::string& tool) { log_ignored(kPath, tool); }, tools);
  parse_anthropic_choice(f, tools);
  parse_variables(f, tools);
  if (const Json* thinking = f.find("thinking"); thinking != nullptr && thinking->is_object())
    tools.thinks = JsonFields(thinking->get_object(), "thinking.").string("type").value_or("") != "disabled";
  return tools;
}

/// "thinking": {"type": "enabled", "budget_tokens": n}
void parse_thought_budget(const JsonFields& f, GenerationRequest& r) {
  const Json* thinking = f.find("thinking");
  if (thinking == nullptr || !thinking->is_object()) return;
  const JsonFields fields(thinking->get_object(), "thinking.");
  const auto budget = fields.integer("budget_tokens", 0, std::numeric_limits<std::int32_t>::max());
  if (!budget) return;
  r.thought_budget = static_cast<std::int32_t>(*budget);
  r.thought_budget_field = "thinking.budget_tokens";
}

/// {"type": "json_schema", "schema": {}}
void parse_form(const JsonFields& f, GenerationRequest& r) {
  const Json* format = f.find("output_format");
  if (const Json* config = f.find("output_config"); format == nullptr && config != nullptr && config->is_object())
    format = JsonFields(config->get_object()).find("format");
  if (format == nullptr) return;
  const JsonObject* object = format->if_object();
  const Json* schema = object == nullptr ? nullptr : object->if_contains("schema");
  if (schema == nullptr) throw RequestError::bad_field("output_config.format", "must be an object with a 'schema'");
  r.grammar =
      grammar::Constraint{.source = schema_source(*schema, "output_config.format"), .field = "output_config.format"};
}

/// What the prompt is made of.
void parse_chat(const JsonFields& f, bool keeps_billing, int most_pictures, GenerationRequest& r) {
  Chat chat{.messages = r.messages,
            .marks = PinMarks(r.pins),
            .pictures = PictureFields(most_pictures),
            .keeps_billing = keeps_billing};
  parse_turns(f, chat);
  r.tools = parse_tool_list(f);
  mark_tools(f, r.tools, chat);
  chat.marks.look(f, {});  // of the request: behind all messages
  // An answer that has begun goes on.
  if (r.messages.back().role == "assistant" && r.messages.size() > 1 && r.messages.back().calls.empty()) {
    r.turn_end = text::TurnEnd::kContinue;
    if (!r.tools.specs.empty() && r.tools.may_call)
      throw RequestError::unsupported("messages", "an answer that has begun can't go on where there are tools");
  }
}

std::string count_reply_of(const Model& model, std::string_view body, bool keeps_billing) {
  const ModelFacts& facts = model.facts();
  const JsonObject json = parse_body(body, json_limits(facts.context_length));
  GenerationRequest r;
  parse_chat(JsonFields(json), keeps_billing, facts.most_pictures, r);
  const kv::Text prompt = chat_symbols(model, std::move(r.messages), r.turn_end, r.tools, "messages", kAnyLength);
  return dump(JsonObject{{"input_tokens", prompt.size()}});
}

}  // namespace

GenerationRequest parse_anthropic_request(const JsonObject& body, const RequestLimits& limits, bool keeps_billing) {
  const JsonFields f(body);
  // Agents send these by default. They ask Anthropic's services for something, and change no answer here.
  log_ignored_fields(kPath, f,
                     {"metadata", "context_management", "container", "mcp_servers", "service_tier", "inference_geo",
                      "output_config.effort"});
  refuse_unbuilt_samplers(f);
  refuse_openai_fields(f);
  GenerationRequest r;
  r.model = f.string("model").value_or("");
  apply_defaults(limits.defaults, r);
  parse_sampling_fields(f, limits, r);
  for (std::string& stop : parse_stops(f, "stop_sequences")) r.sampling.stop.push_back(std::move(stop));
  parse_chat(f, keeps_billing, limits.most_pictures, r);
  parse_thought_budget(f, r);
  parse_form(f, r);
  settle_form(r.tools, r.grammar);
  const auto most = f.integer("max_tokens", 1, std::numeric_limits<std::int32_t>::max());
  if (!most) throw RequestError::bad_field("max_tokens", "is required", "missing_field");
  r.max_tokens = static_cast<std::int32_t>(*most);
  r.stream = f.boolean("stream").value_or(false);
  parse_engine_fields(f, r);
  return r;
}

std::string anthropic_count_reply(const Model& model, std::string_view body) {
  return count_reply_of(model, body, /*keeps_billing=*/false);
}

std::string anthropic_whole_count_reply(const Model& model, std::string_view body) {
  return count_reply_of(model, body, /*keeps_billing=*/true);
}

}  // namespace coppice::server
