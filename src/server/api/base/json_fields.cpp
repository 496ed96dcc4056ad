#include "server/api/base/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/parser.hpp>
#include <cmath>
#include <limits>

#include "server/api/base/json_fault.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace {

const boost::json::parse_options kOptions{.max_depth = kMaxJsonDepth};

/// What `limits` counts, in a text that need not be JSON.
JsonLimits measure(std::string_view text) {
  JsonLimits size{0, 0};
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
      ++size.parts;
    } else if (c == ',') {
      ++size.elements;
    }
  }
  return size;
}

/// Before the parser has the body: each of its values takes many times the bytes that it has there.
void check_size(std::string_view body, const JsonLimits& limits) {
  const JsonLimits size = measure(body);
  if (size.parts > limits.parts)
    throw RequestError(400,
                       fmt::format("The body has {} strings, lists and objects; the limit for this model is {}.",
                                   size.parts, limits.parts),
                       "", "too_many_values");
  if (size.elements > limits.elements)
    throw RequestError(400,
                       fmt::format("The body has {} commas between values; the limit for this model is {}.",
                                   size.elements, limits.elements),
                       "", "too_many_values");
}

/// 2.0 is one, too: some clients write all numbers so.
bool is_integer(const Json& value) {
  const double* number = value.if_double();
  return value.is_int64() || value.is_uint64() ||
         (number != nullptr && std::isfinite(*number) && *number == std::trunc(*number));
}

std::string range_text(auto min, auto max, auto lowest, auto highest) {
  if (min == lowest && max == highest) return "out of range";
  if (max == highest) return fmt::format("must be at least {}", min);
  if (min == lowest) return fmt::format("must be at most {}", max);
  return fmt::format("must be between {} and {}", min, max);
}

}  // namespace

JsonLimits json_limits(std::int32_t context_length, int prompts) {
  constexpr std::size_t kMessageParts = 12;  // an object of name, role and content, that a list of one part of text
  const auto context = static_cast<std::size_t>(context_length);
  JsonLimits limits;
  limits.parts += kMessageParts * context;
  limits.elements += std::max(kMessageParts, static_cast<std::size_t>(prompts)) * context;
  return limits;
}

JsonObject parse_body(std::string_view body, const JsonLimits& limits, std::string_view what) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors and shells put it before a text
  if (body.starts_with(kByteOrderMark)) body.remove_prefix(kByteOrderMark.size());
  check_size(body, limits);
  // All values in a few large pieces of memory, which are freed as such.
  boost::json::parser parser({}, kOptions);
  parser.reset(boost::json::make_shared_resource<boost::json::monotonic_resource>());
  boost::system::error_code error;
  parser.write(body.data(), body.size(), error);
  if (error)
    throw RequestError(400, fmt::format("{} is not valid JSON: {}.", what, json_fault(body, kMaxJsonDepth)), "",
                       "invalid_json");
  Json value = parser.release();
  if (!value.is_object())
    throw RequestError(400, fmt::format("{} must be a JSON object, {{\"like\": \"this\"}}.", what), "", "invalid_json");
  return std::move(value.get_object());
}

std::optional<std::int64_t> whole_number(const Json& value) {
  if (const std::int64_t* n = value.if_int64()) return *n;  // the parser's type for all that it can hold
  const double* number = value.if_double();
  if (number == nullptr || !is_integer(value) || std::abs(*number) >= 0x1p63) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

const Json* JsonFields::find(const char* name) const {
  const Json* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<std::int64_t> JsonFields::integer(const char* name, std::int64_t min, std::int64_t max) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!is_integer(*value)) throw RequestError::bad_field(path(name), "must be an integer", "invalid_type");
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const auto n = whole_number(*value);
  if (!n || *n < min || *n > max) throw RequestError::bad_field(path(name), range_text(min, max, kMin, kMax));
  return n;
}

std::optional<double> JsonFields::number(const char* name, double min, double max) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) throw RequestError::bad_field(path(name), "must be a number", "invalid_type");
  const double x = value->to_number<double>();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (!std::isfinite(x) || x < min || x > max)
    throw RequestError::bad_field(path(name), range_text(min, max, -kInf, kInf));
  return x;
}

std::optional<bool> JsonFields::boolean(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) throw RequestError::bad_field(path(name), "must be true or false", "invalid_type");
  return value->get_bool();
}

std::optional<std::string> JsonFields::string(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw RequestError::bad_field(path(name), "must be a string", "invalid_type");
  return std::string(value->get_string());
}

bool looks_like_tokens(const Json& value) {
  const JsonArray* array = value.if_array();
  return array != nullptr && !array->empty() && array->front().is_number();
}

const JsonObject& object_of(const Json* value, const std::string& path) {
  if (value == nullptr) throw RequestError::bad_field(path, "is required", "missing_field");
  const JsonObject* object = value->if_object();
  if (object == nullptr) throw RequestError::bad_field(path, "must be an object", "invalid_type");
  return *object;
}

const JsonArray& array_of(const Json* value, const std::string& path) {
  if (value == nullptr) throw RequestError::bad_field(path, "is required", "missing_field");
  const JsonArray* array = value->if_array();
  if (array == nullptr) throw RequestError::bad_field(path, "must be a list", "invalid_type");
  return *array;
}

std::string JsonFields::required_string(const char* name) const {
  auto text = string(name);
  if (!text) throw RequestError::bad_field(path(name), "is required", "missing_field");
  return *std::move(text);
}

std::vector<kv::Token> token_array(const Json& value, const std::string& path, std::int32_t n_vocab) {
  const JsonArray* array = value.if_array();
  if (array == nullptr) throw RequestError::bad_field(path, "must be an array of token ids", "invalid_type");
  std::vector<kv::Token> tokens;
  tokens.reserve(array->size());
  for (const Json& element : *array) {
    if (!is_integer(element)) throw RequestError::bad_field(path, "a token id must be an integer", "invalid_type");
    const auto token = whole_number(element);
    if (!token || *token < 0 || *token >= n_vocab)
      throw RequestError::bad_field(path, fmt::format("a token id must be in [0, {})", n_vocab));
    tokens.push_back(static_cast<kv::Token>(*token));
  }
  return tokens;
}

}  // namespace coppice::server
