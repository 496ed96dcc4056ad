// How a schema becomes flat, and which keywords it may have.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>
#include <string_view>

#include "grammar/schema/schema_merge.h"
#include "grammar/schema/schema_walk.h"
#include "grammar/schema/values.h"

namespace coppice::grammar {

namespace {

using boost::json::array;
using boost::json::object;
using boost::json::value;

constexpr int kMaxNodes = 20000;
constexpr std::size_t kMaxWork = std::size_t{1} << 21;  ///< some 0.1 s; 30 schemas of the most bytes, wholly copied
constexpr std::size_t kMaxPlaceDepth = 96;              ///< slashes of a place

/// They assert something, and nothing here enforces it.
constexpr std::array<std::string_view, 14> kRefused = {"not",
                                                       "dependentRequired",
                                                       "dependentSchemas",
                                                       "dependencies",
                                                       "contains",
                                                       "unevaluatedItems",
                                                       "$dynamicRef",
                                                       "$recursiveRef",
                                                       "extends",
                                                       "disallow",
                                                       "divisibleBy",
                                                       "then",
                                                       "else",
                                                       "if"};

/// Copied as they are, once their form is checked.
constexpr std::array<std::string_view, 5> kLists = {"enum", "required", "anyOf", "oneOf", "prefixItems"};
constexpr std::array<std::string_view, 2> kMaps = {"properties", "patternProperties"};
constexpr std::array<std::string_view, 2> kStrings = {"pattern", "format"};
constexpr std::array<std::string_view, 11> kNumbers = {"minLength",        "maxLength",        "minItems",  "maxItems",
                                                       "minProperties",    "maxProperties",    "minimum",   "maximum",
                                                       "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};

bool is_schema(const value& v) {
  return v.is_object() || v.is_bool();
}

void require_form(bool good, std::string_view keyword, const std::string& place, const char* form) {
  if (!good) throw SchemaError(std::string(keyword), place, fmt::format("must be {}", form));
}

bool is_empty(const value& v) {
  return (v.is_object() && v.get_object().empty()) || (v.is_array() && v.get_array().empty());
}

void refuse_unknown_assertions(const object& schema, const std::string& place) {
  for (const auto& field : schema) {
    const std::string_view name = field.key();
    // Without content most of them say nothing; but nothing is valid under "not": {}, and "contains": {} wants an item.
    const bool says_something = name == "not" || name == "contains" || !is_empty(field.value());
    if (!is_listed(kRefused, name) || !says_something) continue;
    const bool idle = (name == "if" && !schema.contains("then") && !schema.contains("else")) ||
                      ((name == "then" || name == "else") && !schema.contains("if")) ||
                      (name == "unevaluatedItems" && field.value() == value(true));
    if (!idle) throw SchemaError(std::string(name), place, "not supported");
  }
}

bool wants_unique(const object& schema) {
  const value *unique = schema.if_contains("uniqueItems"), *most = schema.if_contains("maxItems");
  if (unique == nullptr || *unique != value(true)) return false;
  return most == nullptr || !most->is_number() || most->to_number<double>() > 1;
}

/// Draft 4 wrote `minimum: 5, exclusiveMinimum: true`.
void modernise_bounds(object& out) {
  for (const auto& [exclusive, plain] :
       {std::pair("exclusiveMinimum", "minimum"), std::pair("exclusiveMaximum", "maximum")}) {
    const value* flag = out.if_contains(exclusive);
    if (flag == nullptr || !flag->is_bool()) continue;
    const bool on = flag->get_bool();
    out.erase(exclusive);
    if (!on || !out.contains(plain)) continue;
    out[exclusive] = value(out.at(plain));
    out.erase(plain);
  }
}

void copy_type(const value& type, object& out, const std::string& place) {
  array names = type.is_array() ? type.get_array() : array{type};
  require_form(!names.empty(), "type", place, "a type or a list of types");
  for (const value& name : names)
    require_form(name.is_string() && type_named(name.get_string()) != 0, "type", place,
                 "a JSON type's name or a list of them");
  out["type"] = std::move(names);
}

/// Items by their place were `items: [...]`, and the rest additionalItems, until 2019.
void copy_items(const object& schema, object& out, const std::string& place) {
  const value* items = schema.if_contains("items");
  if (items == nullptr) return;
  if (!items->is_array()) {
    require_form(is_schema(*items), "items", place, "a schema");
    out["items"] = *items;
    return;
  }
  out["prefixItems"] = *items;
  if (const value* rest = schema.if_contains("additionalItems")) {
    require_form(is_schema(*rest), "additionalItems", place, "a schema");
    out["items"] = *rest;
  }
}

void copy_keyword(std::string_view name, const value& v, object& out, const std::string& place) {
  if (is_listed(kLists, name)) {
    require_form(v.is_array(), name, place, "a list");
    if (name == "required")
      require_form(std::ranges::all_of(v.get_array(), [](const value& key) { return key.is_string(); }), name, place,
                   "a list of strings");
    if (name != "required") require_form(!v.get_array().empty(), name, place, "a list that isn't empty");
  } else if (is_listed(kMaps, name)) {
    require_form(v.is_object(), name, place, "an object of schemas");
  } else if (is_listed(kStrings, name)) {
    require_form(v.is_string(), name, place, "a string");
  } else if (is_listed(kNumbers, name)) {
    require_form(v.is_number() || (v.is_bool() && name.starts_with("exclusive")), name, place, "a number");
  } else if (name == "additionalProperties" || name == "propertyNames" || name == "unevaluatedProperties") {
    require_form(is_schema(v), name, place, "a schema");
  } else {
    return;  // an annotation, or nobody's word
  }
  out[name] = v;
}

/// An embedded document has references of its own, which would be looked up in the wrong place.
void refuse_embedded(const object& schema, const std::string& place) {
  for (const char* name : {"$id", "id"}) {
    const value* id = schema.if_contains(name);
    if (place.empty() || id == nullptr || !id->is_string() || id->get_string().starts_with("#")) continue;
    if (boost::json::serialize(schema).find("\"$ref\"") != std::string::npos)
      throw SchemaError(name, place, "references inside an embedded schema are not supported");
  }
}

}  // namespace

void SchemaWalk::charge(std::size_t work, const Location& place) {
  work_ += work;
  if (work_ > kMaxWork)
    throw SchemaError("schema", place.pointer, "it takes too much work to check: it repeats or compares too much");
}

SchemaWalk::Object SchemaWalk::merge(const Object& a, const Object& b, const Location& place) {
  charge(merge_work(a, b), place);
  return merge_schemas(a, b, place.pointer);
}

void SchemaWalk::count_node(const Location& place) {
  // Places are copied from node to node.
  std::size_t bytes = place.pointer.size();
  for (const std::string& target : place.chain) bytes += target.size();
  charge(bytes / 16, place);
  if (++n_nodes_ > kMaxNodes)
    throw SchemaError("$ref", place.pointer, fmt::format("more than {} schemas with all references", kMaxNodes));
  if (static_cast<std::size_t>(std::ranges::count(place.pointer, '/')) > kMaxPlaceDepth ||
      place.chain.size() > kMaxPlaceDepth)
    throw SchemaError("$ref", place.pointer, "nested too deep");
}

SchemaWalk::Object SchemaWalk::flat_itself(const Object& schema, const Location& place) {
  charge(weight(schema), place);
  refuse_unknown_assertions(schema, place.pointer);
  if (wants_unique(schema)) {
    if (strict_) throw SchemaError("uniqueItems", place.pointer, "not supported for more than one item");
    unheld_.insert("uniqueItems");
  }
  refuse_embedded(schema, place.pointer);
  Object out;
  for (const auto& field : schema) copy_keyword(field.key(), field.value(), out, place.pointer);
  if (const Value* type = schema.if_contains("type")) copy_type(*type, out, place.pointer);
  copy_items(schema, out, place.pointer);
  if (const Value* one = schema.if_contains("const")) {
    const Value* values = out.if_contains("enum");
    Array only{*one};
    if (values != nullptr &&
        std::ranges::none_of(values->get_array(), [&](const Value& v) { return equal_values(v, *one); }))
      only.clear();
    out["enum"] = std::move(only);
  }
  modernise_bounds(out);
  return out;
}

SchemaWalk::Object SchemaWalk::flat(const Value& schema, const Location& place) {
  count_node(place);
  if (const bool* plain = schema.if_bool()) return *plain ? Object{} : Object{{"enum", Array{}}};
  const Object* fields = schema.if_object();
  if (fields == nullptr) throw SchemaError("schema", place.pointer, "must be an object or a boolean");
  Object out = flat_itself(*fields, place);
  if (const Value* ref = fields->if_contains("$ref")) {
    require_form(ref->is_string(), "$ref", place.pointer, "a string");
    const SchemaRefs::Target target = refs_.resolve(ref->get_string(), place.pointer);
    Location there{target.pointer, place.chain};
    if (std::ranges::find(there.chain, target.pointer) != there.chain.end())
      throw SchemaError("$ref", place.pointer, "it refers to itself");
    there.chain.push_back(target.pointer);
    out = merge(out, flat(*target.schema, there), place);
  }
  if (const Value* all = fields->if_contains("allOf")) {
    require_form(all->is_array() && !all->get_array().empty(), "allOf", place.pointer, "a list of schemas");
    const Location list = place.at("allOf");
    for (std::size_t i = 0; i < all->get_array().size(); ++i)
      out = merge(out, flat(all->get_array()[i], {under(list.pointer, i), place.chain}), place);
  }
  // Nothing beside it is left that could evaluate more than it sees here.
  if (const Value* rest = out.if_contains("unevaluatedProperties")) {
    if ((out.contains("anyOf") || out.contains("oneOf")) && *rest != Value(true))
      throw SchemaError("unevaluatedProperties", place.pointer, "not together with alternatives");
    if (!out.contains("additionalProperties")) out["additionalProperties"] = Value(*rest);
    out.erase("unevaluatedProperties");
  }
  return out;
}

}  // namespace coppice::grammar
