#include "grammar/schema/values.h"

#include <algorithm>
#include <cmath>

namespace coppice::grammar {

using boost::json::value;

std::uint8_t type_named(std::string_view name) {
  if (name == "null") return kNull;
  if (name == "boolean") return kBoolean;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber;
  if (name == "string") return kString;
  if (name == "array") return kArray;
  if (name == "object") return kObject;
  return 0;
}

std::uint8_t type_of(const value& v) {
  switch (v.kind()) {
    case boost::json::kind::null:
      return kNull;
    case boost::json::kind::bool_:
      return kBoolean;
    case boost::json::kind::int64:
    case boost::json::kind::uint64:
      return kInteger;
    case boost::json::kind::double_:
      return std::trunc(v.get_double()) == v.get_double() ? kInteger : kFraction;
    case boost::json::kind::string:
      return kString;
    case boost::json::kind::array:
      return kArray;
    case boost::json::kind::object:
      return kObject;
  }
  return 0;
}

bool equal_values(const value& a, const value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_double() || b.is_double()) return a.to_number<double>() == b.to_number<double>();
    return a == b;
  }
  if (a.kind() != b.kind()) return false;
  if (const auto* list = a.if_array()) return std::ranges::equal(*list, b.get_array(), equal_values);
  if (const auto* fields = a.if_object()) {
    const auto& others = b.get_object();
    return fields->size() == others.size() && std::ranges::all_of(*fields, [&](const auto& field) {
             const value* other = others.if_contains(field.key());
             return other != nullptr && equal_values(field.value(), *other);
           });
  }
  return a == b;
}

std::size_t weight(const boost::json::object& fields) {
  std::size_t sum = 1;
  for (const auto& field : fields) sum += field.key().size() + weight(field.value());
  return sum;
}

std::size_t weight(const value& v) {
  if (const auto* fields = v.if_object()) return weight(*fields);
  if (const auto* text = v.if_string()) return 1 + text->size();
  const auto* list = v.if_array();
  return list == nullptr ? 1 : weight(*list);
}

std::size_t weight(const boost::json::array& list) {
  std::size_t sum = 1;
  for (const value& one : list) sum += weight(one);
  return sum;
}

std::size_t code_points(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; }));
}

}  // namespace coppice::grammar
