#include "grammar/schema/schema_merge.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <string_view>
#include <utility>

#include "grammar/schema/json_schema.h"
#include "grammar/schema/values.h"

namespace coppice::grammar {

using boost::json::array;
using boost::json::object;
using boost::json::value;

namespace {

constexpr std::size_t kMaxProduct = 64;  ///< alternatives of two anyOfs together

value both_of(const value& a, const value& b) {
  if (is_false(a) || is_false(b)) return false;
  if (a == b) return a;
  return object{{"allOf", array{a, b}}};
}

/// The integers of "number" and "integer" are integers.
array common_types(const array& a, const array& b) {
  array common;
  for (const value& type : a) {
    const auto has = [&](const array& list, std::string_view name) {
      return std::ranges::find(list, value(name)) != list.end();
    };
    if (has(b, type.get_string())) {
      common.push_back(type);
    } else if ((type == "integer" && has(b, "number")) ||
               (type == "number" && has(b, "integer") && !has(a, "integer"))) {
      common.push_back("integer");
    }
  }
  return common;
}

array common_values(const array& a, const array& b) {
  array common;
  for (const value& v : a) {
    if (std::ranges::any_of(b, [&](const value& other) { return equal_values(v, other); })) common.push_back(v);
  }
  return common;
}

array product(const array& a, const array& b, std::string_view keyword, const std::string& place) {
  if (a.size() * b.size() > kMaxProduct)
    throw SchemaError(std::string(keyword), place, "too many combinations with another " + std::string(keyword));
  array all;
  for (const value& x : a) {
    for (const value& y : b) all.push_back(both_of(x, y));
  }
  return all;
}

/// Properties that one side names and the other leaves to its additionalProperties.
void take_properties(object& out, const object& a, const object& b, const std::string& place) {
  const value* own = field_of(a, "properties");
  if (own == nullptr) return;
  const value* others = field_of(b, "properties");
  const value* rest = field_of(b, "additionalProperties");
  const value* patterns = field_of(b, "patternProperties");
  for (const auto& property : own->get_object()) {
    const value* other = others == nullptr ? nullptr : others->get_object().if_contains(property.key());
    if (out.contains(property.key())) continue;
    if (other != nullptr) {
      out.emplace(property.key(), both_of(property.value(), *other));
    } else if (rest != nullptr && patterns != nullptr) {
      throw SchemaError("patternProperties", place, "not together with other properties and additionalProperties");
    } else {
      out.emplace(property.key(), rest == nullptr ? property.value() : both_of(property.value(), *rest));
    }
  }
}

/// Keywords of objects: they depend on each other.
void merge_objects(object& out, const object& a, const object& b, const std::string& place) {
  object properties;
  take_properties(properties, a, b, place);
  take_properties(properties, b, a, place);
  const bool any = field_of(a, "properties") != nullptr || field_of(b, "properties") != nullptr;
  if (any) out["properties"] = std::move(properties);
  const value *x = field_of(a, "patternProperties"), *y = field_of(b, "patternProperties");
  if (x != nullptr && y != nullptr && *x != *y) {
    object patterns = x->get_object();
    for (const auto& [pattern, schema] : y->get_object()) {
      if (patterns.contains(pattern)) {
        patterns[pattern] = both_of(patterns.at(pattern), schema);
      } else {
        patterns.emplace(pattern, schema);
      }
    }
    if (field_of(a, "additionalProperties") != nullptr || field_of(b, "additionalProperties") != nullptr)
      throw SchemaError("patternProperties", place, "two sets of patterns, and additionalProperties");
    out["patternProperties"] = std::move(patterns);
  }
}

/// Items that one side names by their place and the other doesn't.
void merge_arrays(const object& a, const object& b, const std::string& place) {
  const value *x = field_of(a, "prefixItems"), *y = field_of(b, "prefixItems");
  if ((x != nullptr || y != nullptr) && (x == nullptr || y == nullptr || *x != *y) &&
      (field_of(a, "items") != nullptr || field_of(b, "items") != nullptr || (x != nullptr && y != nullptr)))
    throw SchemaError("prefixItems", place, "not together with another schema's items");
}

value merged_field(std::string_view name, const value& x, const value& y, const std::string& place) {
  if (x == y) return x;
  if (name == "type") return common_types(x.get_array(), y.get_array());
  if (name == "enum") return common_values(x.get_array(), y.get_array());
  if (name == "anyOf" || name == "oneOf") return product(x.get_array(), y.get_array(), name, place);
  if (name == "additionalProperties" || name == "items" || name == "propertyNames") return both_of(x, y);
  if (name == "required") {
    array all = x.get_array();
    for (const value& key : y.get_array()) {
      if (std::ranges::find(all, key) == all.end()) all.push_back(key);
    }
    return all;
  }
  const bool numbers = x.is_number() && y.is_number();
  if (numbers && (name.starts_with("min") || name == "exclusiveMinimum"))
    return x.to_number<double>() < y.to_number<double>() ? y : x;
  if (numbers && (name.starts_with("max") || name == "exclusiveMaximum"))
    return x.to_number<double>() > y.to_number<double>() ? y : x;
  throw SchemaError(std::string(name), place, "two of them must hold together");
}

}  // namespace

const value* field_of(const object& schema, std::string_view name) {
  return schema.if_contains(name);
}

bool is_false(const value& schema) {
  if (const bool* plain = schema.if_bool()) return !*plain;
  const object* fields = schema.if_object();
  const value* values = fields == nullptr ? nullptr : fields->if_contains("enum");
  return values != nullptr && values->is_array() && values->get_array().empty();
}

std::size_t merge_work(const object& a, const object& b) {
  std::size_t work = weight(a) + weight(b);
  const auto lists = [&](const char* name, auto&& count) {
    const value *x = field_of(a, name), *y = field_of(b, name);
    if (x != nullptr && y != nullptr && x->is_array() && y->is_array()) work += count(x->get_array(), y->get_array());
  };
  for (const char* name : {"enum", "required"})  // each of one side is compared with each of the other
    lists(name, [](const array& x, const array& y) { return x.size() * y.size(); });
  for (const char* name : {"anyOf", "oneOf"})  // ... and becomes an alternative with it
    lists(name, [](const array& x, const array& y) {
      return x.size() * y.size() > kMaxProduct ? 0 : x.size() * weight(y) + y.size() * weight(x);
    });
  return work;
}

object merge_schemas(const object& a, const object& b, const std::string& place) {
  if (a.empty()) return b;
  object out = a;
  merge_objects(out, a, b, place);
  merge_arrays(a, b, place);
  for (const auto& field : b) {
    const std::string_view name = field.key();
    if (name == "properties" || name == "patternProperties") {
      if (!out.contains(name)) out.emplace(name, field.value());
      continue;
    }
    const value* own = field_of(a, name);
    out[name] = own == nullptr ? field.value() : merged_field(name, *own, field.value(), place);
  }
  return out;
}

}  // namespace coppice::grammar
