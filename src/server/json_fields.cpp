#include "server/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/api_error.h"

namespace coppice::server {

namespace {

using nlohmann::json;

/// Of a text that need not be JSON.
struct JsonSize {
  int depth = 0;             ///< of brackets
  std::size_t parts = 0;     ///< see JsonLimits
  std::size_t elements = 0;  ///< see JsonLimits
};

JsonSize measure(std::string_view text) {
  JsonSize size;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
      ++size.parts;
    } else if (c == '[' || c == '{') {
      size.depth = std::max(size.depth, ++depth);
      ++size.parts;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      ++size.elements;
    }
  }
  return size;
}

/// Before the parser has the body: each of its values takes many times the bytes that it has there.
void check_size(std::string_view body, const JsonLimits& limits) {
  const JsonSize size = measure(body);
  // The parser itself does not recurse, but copying and destroying its result may.
  if (size.depth > kMaxJsonDepth)
    throw ApiError(400, fmt::format("The body is nested deeper than {} levels.", kMaxJsonDepth), "", "invalid_json");
  if (size.parts > limits.parts)
    throw ApiError(400,
                   fmt::format("The body has {} strings, lists and objects; the limit for this model is {}.",
                               size.parts, limits.parts),
                   "", "too_many_values");
  if (size.elements > limits.elements)
    throw ApiError(400,
                   fmt::format("The body has {} commas between values; the limit for this model is {}.", size.elements,
                               limits.elements),
                   "", "too_many_values");
}

std::string range_text(auto min, auto max, auto lowest, auto highest) {
  if (min == lowest && max == highest) return "out of range";
  if (max == highest) return fmt::format("must be at least {}", min);
  if (min == lowest) return fmt::format("must be at most {}", max);
  return fmt::format("must be between {} and {}", min, max);
}

}  // namespace

json parse_body(std::string_view body, const JsonLimits& limits) {
  check_size(body, limits);
  json value;
  try {
    value = json::parse(body);
  } catch (const json::exception& e) {
    // Its text quotes the input, which may be neither short nor UTF-8: the position is what helps.
    const auto* where = dynamic_cast<const json::parse_error*>(&e);
    throw ApiError(400,
                   where ? fmt::format("The body is not valid JSON in UTF-8: error at byte {}.", where->byte)
                         : "The body is not valid JSON: a number is out of range.",
                   "", "invalid_json");
  }
  if (!value.is_object()) throw ApiError(400, "The body must be a JSON object.", "", "invalid_json");
  return value;
}

const json* JsonFields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::int64_t> JsonFields::integer(const char* name, std::int64_t min, std::int64_t max) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) throw ApiError::field(path(name), "must be an integer", "invalid_type");
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const bool too_big = value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{kMax};
  const std::int64_t n = too_big ? kMax : value->get<std::int64_t>();
  if (too_big || n < min || n > max) throw ApiError::field(path(name), range_text(min, max, kMin, kMax));
  return n;
}

std::optional<double> JsonFields::number(const char* name, double min, double max) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) throw ApiError::field(path(name), "must be a number", "invalid_type");
  const double x = value->get<double>();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (!std::isfinite(x) || x < min || x > max) throw ApiError::field(path(name), range_text(min, max, -kInf, kInf));
  return x;
}

std::optional<bool> JsonFields::boolean(const char* name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw ApiError::field(path(name), "must be true or false", "invalid_type");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::string(const char* name) const {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw ApiError::field(path(name), "must be a string", "invalid_type");
  return value->get<std::string>();
}

bool looks_like_tokens(const json& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

std::vector<kv::Token> token_array(const json& array, const std::string& path, std::int32_t n_vocab) {
  if (!array.is_array()) throw ApiError::field(path, "must be an array of token ids", "invalid_type");
  std::vector<kv::Token> tokens;
  tokens.reserve(array.size());
  for (const json& element : array) {
    if (!element.is_number_integer()) throw ApiError::field(path, "a token id must be an integer", "invalid_type");
    const bool known =
        element.is_number_unsigned() && element.get<std::uint64_t>() < static_cast<std::uint64_t>(n_vocab);
    if (!known) throw ApiError::field(path, fmt::format("a token id must be in [0, {})", n_vocab));
    tokens.push_back(element.get<kv::Token>());
  }
  return tokens;
}

}  // namespace coppice::server
