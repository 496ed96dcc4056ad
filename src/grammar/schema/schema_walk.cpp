#include "grammar/schema/schema_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "grammar/schema/schema_merge.h"
#include "grammar/schema/values.h"
#include "port/zero_bytes.h"

namespace coppice::grammar {

namespace {

using boost::json::object;
using boost::json::value;

constexpr std::array<std::string_view, 7> kOfObjects = {"properties",        "required",      "additionalProperties",
                                                        "patternProperties", "propertyNames", "minProperties",
                                                        "maxProperties"};
constexpr std::array<std::string_view, 4> kOfArrays = {"items", "prefixItems", "minItems", "maxItems"};
constexpr std::array<std::string_view, 4> kOfStrings = {"minLength", "maxLength", "pattern", "format"};
constexpr std::array<std::string_view, 5> kOfNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                        "multipleOf"};

bool has_any(const object& flat, const auto& keywords) {
  return std::ranges::any_of(keywords, [&](std::string_view name) { return flat.contains(name); });
}

double number_of(const value& v) {
  return v.to_number<double>();
}

/// $ref and nothing that asserts more. (Titles and definitions don't.)
const value* only_reference(const value& schema) {
  const object* fields = schema.if_object();
  const value* ref = fields == nullptr ? nullptr : fields->if_contains("$ref");
  if (ref == nullptr || !ref->is_string()) return nullptr;
  constexpr std::array<std::string_view, 12> kSilent = {
      "$ref",    "title", "description", "default", "examples",   "$comment",
      "$schema", "$id",   "definitions", "$defs",   "deprecated", "markdownDescription"};
  return std::ranges::all_of(
             *fields,
             [&](const auto& f) { return std::ranges::find(kSilent, std::string_view(f.key())) != kSilent.end(); })
             ? ref
             : nullptr;
}

/// Objects that are listed whole become alternatives whose properties have one value each.
void spell_out_objects(value& schema) {
  object& fields = schema.get_object();
  if (value* alternatives = fields.if_contains("anyOf")) {
    for (value& one : alternatives->get_array()) spell_out_objects(one);
    return;
  }
  const value* values = fields.if_contains("enum");
  if (values == nullptr) return;
  boost::json::array all;
  for (const value& one : values->get_array()) {
    object properties;
    boost::json::array names;
    for (const auto& field : one.get_object()) {
      properties[field.key()] = object{{"enum", boost::json::array{field.value()}}};
      names.emplace_back(field.key());
    }
    all.push_back(object{{"type", "object"},
                         {"properties", std::move(properties)},
                         {"required", std::move(names)},
                         {"additionalProperties", false}});
  }
  schema = all.size() == 1 ? value(all[0]) : value(object{{"anyOf", std::move(all)}});
}

/// Why the grammar can't have the value as it is; nullptr: it can.
const char* unwritable(const value& v) {
  if (const auto* whole = v.if_uint64(); whole != nullptr && *whole > std::numeric_limits<std::int64_t>::max())
    return "a number is beyond the integers of 64 bits";
  if (v.is_double() && !std::isfinite(v.get_double())) return "a number is too large";
  const char* fault = nullptr;
  if (const auto* list = v.if_array())
    for (const value& one : *list) fault = fault != nullptr ? fault : unwritable(one);
  if (const auto* fields = v.if_object())
    for (const auto& field : *fields) fault = fault != nullptr ? fault : unwritable(field.value());
  return fault;
}

object without(const object& flat, std::string_view keyword) {
  object rest = flat;
  rest.erase(keyword);
  return rest;
}

}  // namespace

SchemaError::SchemaError(std::string keyword, std::string place, const std::string& reason)
    : std::runtime_error(port::without_zeros(fmt::format("the schema's '{}' at '#{}': {}", keyword, place, reason))),
      keyword_(std::move(keyword)),
      place_(std::move(place)) {}

std::string enforceable_schema(const value& schema, bool strict, std::set<std::string>* unheld) {
  SchemaWalk walk(schema, strict);
  std::string text = boost::json::serialize(walk.run());
  if (unheld != nullptr) *unheld = std::move(walk).take_unheld();
  return text;
}

std::string enforceable_arguments(const value& schema, bool strict, std::set<std::string>* unheld) {
  SchemaWalk walk(schema, strict);
  std::string text = boost::json::serialize(walk.run_object());
  if (unheld != nullptr) *unheld = std::move(walk).take_unheld();
  return text;
}

std::uint8_t types_of(const object& flat) {
  if (const value* names = flat.if_contains("type")) {
    std::uint8_t types = 0;
    for (const value& name : names->get_array()) types |= type_named(name.get_string());
    return types;
  }
  std::uint8_t types = 0;
  if (has_any(flat, kOfObjects)) types |= kObject;
  if (has_any(flat, kOfArrays)) types |= kArray;
  if (has_any(flat, kOfStrings)) types |= kString;
  if (has_any(flat, kOfNumbers)) types |= kNumber;
  return types == 0 ? kAnyType : types;
}

bool accepts(const object& flat, const value& v) {
  if (flat.contains("type") && (types_of(flat) & type_of(v)) == 0) return false;
  if (const value* values = flat.if_contains("enum");
      values != nullptr &&
      std::ranges::none_of(values->get_array(), [&](const value& x) { return equal_values(x, v); }))
    return false;
  const auto bound = [&](const char* name) -> std::optional<double> {
    const value* b = flat.if_contains(name);
    return b == nullptr ? std::nullopt : std::optional(number_of(*b));
  };
  if (v.is_number()) {
    const double x = number_of(v);
    if (const auto b = bound("minimum"); b && x < *b) return false;
    if (const auto b = bound("maximum"); b && x > *b) return false;
    if (const auto b = bound("exclusiveMinimum"); b && x <= *b) return false;
    if (const auto b = bound("exclusiveMaximum"); b && x >= *b) return false;
    if (const auto b = bound("multipleOf"); b && std::fmod(x, *b) != 0) return false;
  } else if (v.is_string()) {
    const auto length = static_cast<double>(code_points(v.get_string()));
    if (const auto b = bound("minLength"); b && length < *b) return false;
    if (const auto b = bound("maxLength"); b && length > *b) return false;
  }
  return true;
}

long count_of(const object& flat, const char* keyword, long otherwise, const std::string& place) {
  const value* v = flat.if_contains(keyword);
  if (v == nullptr) return otherwise;
  const double n = number_of(*v);
  if (!(n >= 0) || n != std::trunc(n)) throw SchemaError(keyword, place, "must be a whole number of at least 0");
  return static_cast<long>(std::min(n, 2147483647.0));
}

value SchemaWalk::run() {
  return with_definitions(rewrite(root_, {}));
}

value SchemaWalk::run_object() {
  try {
    Value root = rewrite_flat(merge(flat(root_, {}), Object{{"type", Array{"object"}}}, {}), {});
    spell_out_objects(root);
    return with_definitions(std::move(root));
  } catch (const UnsatisfiableError& e) {
    throw SchemaError(e.keyword(), e.place(), "it allows no object, and a tool's arguments are one");
  }
}

value SchemaWalk::with_definitions(Value root) {
  if (!definitions_.empty()) {
    if (!root.is_object() || root.get_object().contains("$ref")) root = Object{{"anyOf", Array{std::move(root)}}};
    root.get_object()["$defs"] = std::move(definitions_);
  }
  return root;
}

value SchemaWalk::rewrite(const Value& schema, const Location& place) {
  if (const Value* ref = only_reference(schema)) return reference(*ref, place);
  return rewrite_flat(flat(schema, place), place);
}

value SchemaWalk::reference(const Value& ref, const Location& place) {
  const SchemaRefs::Target target = refs_.resolve(ref.get_string(), place.pointer);
  if (std::ranges::find(place.chain, target.pointer) != place.chain.end())
    throw SchemaError("$ref", place.pointer, "it refers to itself");
  auto it = names_.find(target.pointer);
  if (it == names_.end()) {
    it = names_.emplace(target.pointer, fmt::format("r{}", names_.size())).first;
    Location there{target.pointer, place.chain};
    there.chain.push_back(target.pointer);
    try {
      definitions_[it->second] = rewrite(*target.schema, there);
    } catch (const UnsatisfiableError&) {
      names_.erase(it);  // whoever refers to it finds the same
      throw;
    }
  }
  return Object{{"$ref", "#/$defs/" + it->second}};
}

value SchemaWalk::rewrite_flat(const Object& flat, const Location& place) {
  if (flat.contains("enum")) return rewrite_enum(flat, place);
  if (flat.contains("anyOf")) return rewrite_choice(flat, "anyOf", place);
  if (flat.contains("oneOf")) return rewrite_choice(flat, "oneOf", place);
  const std::uint8_t types = types_of(flat);
  if (types == 0) throw UnsatisfiableError("type", place.pointer, "no type is left");
  if (types == kAnyType && !flat.contains("type")) return Object{};
  Array choices;
  constexpr std::array<std::uint8_t, 7> kSingle = {kObject, kArray, kString, kNumber, kInteger, kBoolean, kNull};
  for (const std::uint8_t type : kSingle) {
    if ((types & type) != type || (type == kInteger && (types & kFraction) != 0)) continue;
    choices.push_back(rewrite_type(type, flat, place));
  }
  return choices.size() == 1 ? Value(choices[0]) : Value(Object{{"anyOf", std::move(choices)}});
}

value SchemaWalk::rewrite_type(std::uint8_t type, const Object& flat, const Location& place) {
  switch (type) {
    case kObject:
      return rewrite_object(flat, place);
    case kArray:
      return rewrite_array(flat, place);
    case kString:
      return rewrite_string(flat, place);
    case kNumber:
      return rewrite_number(flat, false, place);
    case kInteger:
      return rewrite_number(flat, true, place);
    case kBoolean:
      return Object{{"type", "boolean"}};
    default:
      return Object{{"type", "null"}};
  }
}

value SchemaWalk::rewrite_enum(const Object& flat, const Location& place) {
  const Value* regex = flat.if_contains("pattern");
  Array kept;
  std::uint8_t types = 0;
  const Object others = without(flat, "enum");
  for (const Value& v : flat.at("enum").get_array()) {
    if (!accepts(others, v)) continue;
    if (regex != nullptr && v.is_string() && !accepts_name(Object{{"pattern", *regex}}, v.get_string(), place))
      continue;
    kept.push_back(v);
    types |= type_of(v);
  }
  for (const Value& v : kept)
    if (const char* fault = unwritable(v)) throw SchemaError("enum", place.pointer, fault);
  const auto refuse = [&](const auto& keywords) {
    for (const std::string_view name : keywords)
      if (flat.contains(name)) throw SchemaError(std::string(name), place.pointer, "not together with enum or const");
  };
  if ((types & kObject) != 0) refuse(kOfObjects);
  if ((types & kArray) != 0) refuse(kOfArrays);
  for (const char* name : {"anyOf", "oneOf"}) {
    if (!flat.contains(name)) continue;
    // Each alternative takes of the values what it allows.
    Object rest = flat;
    rest["enum"] = std::move(kept);
    return rewrite_choice(rest, name, place);
  }
  if (kept.empty()) throw UnsatisfiableError("enum", place.pointer, "no value is allowed");
  return Object{{"enum", std::move(kept)}};
}

value SchemaWalk::rewrite_choice(const Object& flat, std::string_view keyword, const Location& place) {
  const Object rest = without(flat, keyword);
  const Array& options = flat.at(keyword).get_array();
  std::vector<Object> merged;
  std::optional<UnsatisfiableError> last;
  Array choices;
  for (std::size_t i = 0; i < options.size(); ++i) {
    const Location at{under(under(place.pointer, keyword), i), place.chain};
    try {
      if (rest.empty() && keyword == "anyOf") {
        choices.push_back(rewrite(options[i], at));
      } else {
        Object one = merge(rest, this->flat(options[i], at), at);
        Value choice = rest.empty() ? rewrite(options[i], at) : rewrite_flat(one, at);
        merged.push_back(std::move(one));
        choices.push_back(std::move(choice));
      }
    } catch (const UnsatisfiableError& e) {
      last = e;
    }
  }
  if (choices.empty()) throw UnsatisfiableError(last.value());
  if (keyword == "oneOf") {
    for (std::size_t i = 0; i < merged.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (!disjoint(merged[i], merged[j], place))
          throw SchemaError("oneOf", place.pointer, "alternatives that may both hold are not supported; anyOf is");
      }
    }
  }
  return choices.size() == 1 ? Value(choices[0]) : Value(Object{{"anyOf", std::move(choices)}});
}

}  // namespace coppice::grammar
