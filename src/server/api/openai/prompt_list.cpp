#include "server/api/openai/prompt_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "server/api/base/json_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/openai/openai_request.h"

namespace coppice::server {

namespace {

constexpr std::size_t kPicture = 2;  // in PromptParts

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

/// A text, or parts of one.
Prompt joined(PromptParts parts) {
  if (std::ranges::none_of(parts, [](const auto& part) { return part.index() == kPicture; })) {
    std::string text;
    for (const auto& part : parts) text += std::get<std::string>(part);
    return text;
  }
  // Texts next to each other are one.
  PromptParts whole;
  for (auto& part : parts) {
    auto* text = std::get_if<std::string>(&part);
    auto* before = whole.empty() ? nullptr : std::get_if<std::string>(&whole.back());
    if (text != nullptr && before != nullptr) {
      *before += *text;
    } else {
      whole.push_back(std::move(part));
    }
  }
  // The beginning token stands before a text only.
  if (whole.front().index() == kPicture) whole.insert(whole.begin(), std::string());
  return whole;
}

/// llama-server's: a picture for each marker in the text.
Prompt with_pictures(const std::string& text, const Json& data, const std::string& path, PictureFields& pictures) {
  pictures.check_sees(path);
  const JsonArray& list = array_of(&data, path);
  PromptParts parts;
  std::size_t begin = 0, n = 0;
  for (std::size_t at = 0; (at = text.find(kPublicMarker, begin)) != text.npos; begin = at + kPublicMarker.size()) {
    if (n >= list.size()) break;
    const std::string where = fmt::format("{}[{}]", path, n);
    const Json& each = list[n++];
    if (!each.is_string()) throw RequestError::bad_field(where, "must be an image file in base64", "invalid_type");
    parts.emplace_back(text.substr(begin, at - begin));
    parts.emplace_back(pictures.file({each.get_string().data(), each.get_string().size()}, where));
  }
  if (n < list.size() || text.find(kPublicMarker, begin) != text.npos)
    throw RequestError::bad_field(
        path, fmt::format("holds {} images, and the text has another number of {}", list.size(), kPublicMarker));
  parts.emplace_back(text.substr(begin));
  return joined(std::move(parts));
}

Prompt parse_object(const JsonObject& object, const std::string& path, PictureFields& pictures) {
  const JsonFields f(object, path + ".");
  if (const Json* content = f.find("content")) {
    array_of(content, f.path("content"));
    PromptParts parts;
    for (ContentPart& part : parse_content(*content, f.path("content"), pictures)) {
      if (part.picture) {
        parts.emplace_back(std::move(part.picture));
      } else {
        parts.emplace_back(std::move(part.text));
      }
    }
    return joined(std::move(parts));
  }
  auto text = f.string("prompt_string");
  if (!text) throw RequestError::bad_field(f.path("prompt_string"), "is required", "missing_field");
  const Json* data = f.find("multimodal_data");
  if (data == nullptr || is_empty(*data)) return *std::move(text);
  return with_pictures(*text, *data, f.path("multimodal_data"), pictures);
}

Prompt parse_one(const Json& value, const std::string& path, std::int32_t n_vocab, PictureFields& pictures) {
  if (value.is_string()) return std::string(value.get_string());
  if (const JsonArray* list = value.if_array()) return parse_sequence(*list, path, n_vocab);
  if (const JsonObject* object = value.if_object()) return parse_object(*object, path, pictures);
  throw RequestError::bad_field(path, "must be a text, tokens, or an object with \"prompt_string\"", "invalid_type");
}

}  // namespace

std::vector<Prompt> parse_prompt_list(const Json& value, const std::string& path, const RequestLimits& limits) {
  const JsonArray* list = value.if_array();
  PictureFields pictures(limits.most_pictures);
  if (list != nullptr && list->empty()) throw RequestError::bad_field(path, "must not be empty");
  // A list with a token in it is one prompt; other lists hold prompts.
  if (list == nullptr || std::ranges::any_of(*list, [](const Json& element) { return element.is_number(); }))
    return {parse_one(value, path, limits.n_vocab, pictures)};
  if (std::cmp_greater(list->size(), limits.max_prompts))
    throw RequestError::bad_field(path, fmt::format("at most {} prompts", limits.max_prompts));
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < list->size(); ++i)
    prompts.push_back(parse_one((*list)[i], fmt::format("{}[{}]", path, i), limits.n_vocab, pictures));
  return prompts;
}

}  // namespace coppice::server
