#include "server/api/base/json.h"

#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <cmath>
#include <utility>

#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

/// Boost.JSON writes 1.5 as 1.5E0, which is JSON but looks broken.
void append_number(std::string& out, double x) {
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

std::string dump(const Json& json) {
  std::string text;
  append(text, json);
  return text::is_utf8(text) ? text : text::to_utf8(text);
}

}  // namespace coppice::server
