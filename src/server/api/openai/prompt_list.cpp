#include "server/api/openai/prompt_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "server/api/base/json_fields.h"
#include "server/api/openai/openai_request.h"

namespace coppice::server {

namespace {

kv::Token parse_token(const Json& value, const std::string& path, std::int32_t n_vocab) {
  const auto id = whole_number(value);
  if (!id) throw RequestError::bad_field(path, "must hold texts and token ids", "invalid_type");
  if (*id < 0 || *id >= n_vocab)
    throw RequestError::bad_field(path, fmt::format("a token id must be in [0, {})", n_vocab));
  return static_cast<kv::Token>(*id);
}

Prompt parse_sequence(const JsonArray& list, const std::string& path, std::int32_t n_vocab) {
  PromptParts parts;
  bool texts = false;
  for (const Json& element : list) {
    if (element.is_string()) {
      parts.emplace_back(std::string(element.get_string()));
      texts = true;
    } else {
      parts.emplace_back(parse_token(element, path, n_vocab));
    }
  }
  if (texts) return parts;
  std::vector<kv::Token> tokens;
  for (const auto& part : parts) tokens.push_back(std::get<kv::Token>(part));
  return tokens;
}

Prompt parse_object(const JsonObject& object, const std::string& path) {
  const JsonFields f(object, path + ".");
  if (f.has("multimodal_data")) throw RequestError::unsupported(f.path("multimodal_data"), "this model has no images");
  if (const Json* content = f.find("content")) {
    array_of(content, f.path("content"));
    std::string text;
    for (const ContentPart& part : parse_content(*content, f.path("content"))) text += part.text;
    return text;
  }
  auto text = f.string("prompt_string");
  if (!text) throw RequestError::bad_field(f.path("prompt_string"), "is required", "missing_field");
  return *std::move(text);
}

Prompt parse_one(const Json& value, const std::string& path, std::int32_t n_vocab) {
  if (value.is_string()) return std::string(value.get_string());
  if (const JsonArray* list = value.if_array()) return parse_sequence(*list, path, n_vocab);
  if (const JsonObject* object = value.if_object()) return parse_object(*object, path);
  throw RequestError::bad_field(path, "must be a text, tokens, or an object with \"prompt_string\"", "invalid_type");
}

}  // namespace

std::vector<Prompt> parse_prompt_list(const Json& value, const std::string& path, const RequestLimits& limits) {
  const JsonArray* list = value.if_array();
  if (list != nullptr && list->empty()) throw RequestError::bad_field(path, "must not be empty");
  // A list with a token in it is one prompt; other lists hold prompts.
  if (list == nullptr || std::ranges::any_of(*list, [](const Json& element) { return element.is_number(); }))
    return {parse_one(value, path, limits.n_vocab)};
  if (std::cmp_greater(list->size(), limits.max_prompts))
    throw RequestError::bad_field(path, fmt::format("at most {} prompts", limits.max_prompts));
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < list->size(); ++i)
    prompts.push_back(parse_one((*list)[i], fmt::format("{}[{}]", path, i), limits.n_vocab));
  return prompts;
}

}  // namespace coppice::server
