#include "server/api/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>
#include <utility>

#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

/// Boost.JSON writes 1.5 as 1.5E0, which is JSON but looks broken. It reads 1e999 as infinity, which JSON has no word
/// for.
void append_number(std::string& out, double x) {
  constexpr double kMost = std::numeric_limits<double>::max();
  x = std::clamp(x, -kMost, kMost);
  const bool looks_whole = x == std::trunc(x) && std::abs(x) < 1e15;
  out += looks_whole ? fmt::format("{:.1f}", x) : fmt::format("{}", x);
}

void append(std::string& out, const Json& json) {
  const char* separator = "";
  if (const JsonObject* object = json.if_object()) {
    out += '{';
    for (const auto& field : *object) {
      out += std::exchange(separator, ",");
      out += boost::json::serialize(field.key());
      out += ':';
      append(out, field.value());
    }
    out += '}';
  } else if (const JsonArray* array = json.if_array()) {
    out += '[';
    for (const Json& element : *array) {
      out += std::exchange(separator, ",");
      append(out, element);
    }
    out += ']';
  } else if (const double* x = json.if_double()) {
    append_number(out, *x);
  } else {
    out += boost::json::serialize(json);
  }
}

}  // namespace

bool has_infinity(const Json& json) {
  if (const JsonObject* object = json.if_object())
    return std::ranges::any_of(*object, [](const auto& field) { return has_infinity(field.value()); });
  if (const JsonArray* array = json.if_array()) return std::ranges::any_of(*array, has_infinity);
  const double* x = json.if_double();
  return x != nullptr && std::isinf(*x);
}

std::string dump(const Json& json) {
  std::string text;
  append(text, json);
  return text::is_utf8(text) ? text : text::to_utf8(text);
}

}  // namespace coppice::server
