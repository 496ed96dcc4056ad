#include "server/api/responses/responses_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/api/base/left_out.h"
#include "server/api/base/tool_fields.h"
#include "server/base/random_name.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace {

/// A string, or parts of these types. `result`: of a tool's; what is neither text nor a picture that can be seen is
/// left out (left_out.h).
std::vector<ContentPart> parts_of(const Json& content, const std::string& path, PictureFields& pictures,
                                  bool result = false) {
  if (content.is_string()) return {{std::string(content.get_string())}};
  const JsonArray* list = content.if_array();
  if (list == nullptr) throw RequestError::bad_field(path, "must be a string or a list of parts", "invalid_type");
  std::vector<ContentPart> parts;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    if ((*list)[i].is_string()) {
      parts.push_back({std::string((*list)[i].get_string())});
      continue;
    }
    const JsonFields part(object_of(&(*list)[i], where), where + ".");
    const std::string type = part.required_string("type");
    if (type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text") {
      parts.push_back({part.required_string("text")});
    } else if (type == "refusal") {
      parts.push_back({part.required_string("refusal")});
    } else if (result && !(PictureFields::is_picture(type) && pictures.sees())) {
      parts.push_back({left_out("/v1/responses", type)});
    } else if (auto picture = pictures.part(part, type)) {
      parts.push_back(*std::move(picture));
    } else {
      throw RequestError::unsupported(part.path("type"), unsupported_part(type));
    }
  }
  return parts;
}

std::string text_of(const Json& content, const std::string& path, bool result = false) {
  std::string text;
  PictureFields none(0);
  for (ContentPart& part : parts_of(content, path, none, result)) text += part.text;
  return text;
}

bool is_picture(const Json& part) {
  const Json* type = part.is_object() ? part.get_object().if_contains("type") : nullptr;
  return type != nullptr && type->is_string() && PictureFields::is_picture(std::string_view(type->get_string()));
}

/// A message's content as a list of parts. Pictures stay as they are.
JsonArray full_content(const Json& content, bool assistant) {
  JsonArray parts;
  const auto add = [&](const Json& texts) {
    PictureFields none(0);
    for (ContentPart& part : parts_of(texts, "", none)) {
      JsonObject json = {{"type", assistant ? "output_text" : "input_text"}, {"text", std::move(part.text)}};
      if (assistant) json["annotations"] = JsonArray();
      parts.push_back(std::move(json));
    }
  };
  if (!content.is_array()) {
    add(content);
    return parts;
  }
  for (const Json& part : content.get_array()) {
    if (is_picture(part)) {
      parts.push_back(part);
    } else {
      add(JsonArray{part});
    }
  }
  return parts;
}

/// A tool's result: a text, or a list of parts where pictures that can be seen are among them.
Json full_output(const Json& output, bool sees) {
  const JsonArray* list = output.if_array();
  if (sees && list != nullptr && std::ranges::any_of(*list, is_picture)) return output;
  return Json(text_of(output, "output", /*result=*/true));
}

}  // namespace

void Turns::add(const JsonFields& item) {
  const std::string type = item.string("type").value_or("message");
  if (type == "message") {
    add_message(item);
  } else if (type == "function_call") {
    text::ChatCall call{.id = item.required_string("call_id"), .name = item.required_string("name"), .arguments = {}};
    parse_arguments(item, "arguments", call);
    assistant(!messages_.empty() && messages_.back().role == "assistant").calls.push_back(std::move(call));
  } else if (type == "function_call_output") {
    messages_.push_back({.role = "tool", .call_id = item.required_string("call_id")});
    if (const Json* output = item.find("output"))
      messages_.back().content = parts_of(*output, item.path("output"), pictures_, /*result=*/true);
  } else if (type == "reasoning") {
    if (const Json* content = item.find("content")) reasoning_ += text_of(*content, item.path("content"));
  } else {
    throw RequestError::unsupported(item.path("type"), fmt::format("items of the type \"{}\" are not supported", type));
  }
}

void Turns::add_text(std::string role, std::string text) {
  messages_.push_back({.role = std::move(role), .content = {{std::move(text)}}});
}

Message& Turns::assistant(bool same_turn) {
  if (!same_turn) messages_.push_back({.role = "assistant"});
  messages_.back().reasoning += std::exchange(reasoning_, {});
  return messages_.back();
}

void Turns::add_message(const JsonFields& item) {
  const std::string role = item.required_string("role");
  const Json nothing = "";
  const Json* content = item.find("content");
  if (content == nullptr && role == "assistant") content = &nothing;
  if (content == nullptr) throw RequestError::bad_field(item.path("content"), "is required", "missing_field");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer")
    throw RequestError::bad_field(item.path("role"),
                                  fmt::format("\"{}\" is none of system, developer, user and assistant", role));
  std::vector<ContentPart> parts = parts_of(*content, item.path("content"), pictures_);
  if (role == "assistant") {
    assistant(false).content = std::move(parts);
  } else {
    messages_.push_back({.role = role == "user" ? role : "system", .content = std::move(parts)});
  }
}

ConversationItem kept_item(const JsonObject& item, bool sees) {
  const JsonFields f(item);
  const std::string type = f.string("type").value_or("message");
  const char* prefix = "msg";
  JsonObject kept = {{"id", nullptr}, {"type", type}, {"status", "completed"}};
  if (type == "message") {
    const std::string role = f.required_string("role");
    kept["role"] = role;
    const Json nothing = "";
    const Json* content = f.find("content");
    kept["content"] = full_content(content == nullptr ? nothing : *content, role == "assistant");
  } else if (type == "function_call") {
    prefix = "fc";
    for (const char* name : {"call_id", "name"}) kept[name] = f.required_string(name);
    text::ChatCall call;
    parse_arguments(f, "arguments", call);
    kept["arguments"] = call.arguments;
  } else if (type == "function_call_output") {
    prefix = "fco";
    kept["call_id"] = f.required_string("call_id");
    const Json* output = f.find("output");
    kept["output"] = output == nullptr ? Json("") : full_output(*output, sees);
  } else {
    prefix = "rs";
    kept["summary"] = JsonArray();
    if (const Json* content = f.find("content"))
      kept["content"] = JsonArray{JsonObject{{"type", "reasoning_text"}, {"text", text_of(*content, "content")}}};
  }
  std::string id = f.string("id").value_or("");
  if (id.empty()) id = fmt::format("{}_{}", prefix, random_name());
  kept["id"] = id;
  return {.id = std::move(id), .json = dump(std::move(kept))};
}

JsonObject text_item(std::string text) {
  return {{"type", "message"}, {"role", "user"}, {"content", std::move(text)}};
}

}  // namespace coppice::server
