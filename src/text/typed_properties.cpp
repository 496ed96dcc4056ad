#include "text/typed_properties.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

namespace coppice::text {

namespace {

using Types = std::set<std::string>;

Types all_types() {
  return {"array", "boolean", "number", "object", "string"};
}

std::string type_of(const common_json& value) {
  return value.is_string()           ? "string"
         : value.is_number_integer() ? "integer"
         : value.is_number()         ? "number"
         : value.is_boolean()        ? "boolean"
         : value.is_array()          ? "array"
         : value.is_object()         ? "object"
                                     : "null";
}

Types types_of(const common_json& root, const common_json& schema, int depth) {
  constexpr int kMostDepth = 8;
  if (!schema.is_object() || depth > kMostDepth) return all_types();
  if (schema.contains("$ref")) {
    const common_json* target = referred(root, schema);
    return target == nullptr ? all_types() : types_of(root, *target, depth + 1);
  }
  if (schema.contains("const")) return {type_of(schema.at("const"))};
  Types types;
  if (schema.contains("type")) {
    const common_json& type = schema.at("type");
    if (type.is_string()) return {type.get<std::string>()};
    if (!type.is_array()) return all_types();
    for (const common_json& one : type)
      if (one.is_string()) types.insert(one.get<std::string>());
  } else if (schema.contains("enum") && schema.at("enum").is_array()) {
    for (const common_json& value : schema.at("enum")) types.insert(type_of(value));
  } else {
    for (const char* name : {"anyOf", "oneOf"})
      if (schema.contains(name) && schema.at(name).is_array())
        for (const common_json& one : schema.at(name)) types.merge(types_of(root, one, depth + 1));
  }
  return types.empty() ? all_types() : types;
}

}  // namespace

const common_json* referred(const common_json& root, const common_json& schema) {
  if (!schema.at("$ref").is_string()) return nullptr;
  const std::string ref = schema.at("$ref").get<std::string>();
  if (!ref.starts_with("#/")) return nullptr;
  const common_json* target = &root;
  for (std::size_t at = 1; at < ref.size();) {
    const std::size_t end = std::min(ref.find('/', at + 1), ref.size());
    const std::string name = ref.substr(at + 1, end - at - 1);
    if (!target->is_object() || !target->contains(name)) return nullptr;
    target = &target->at(name);
    at = end;
  }
  return target;
}

std::string with_types(const std::string& parameters, bool real) {
  common_json all = common_json::parse_no_throw(parameters);
  if (!all.is_object()) all = common_json::object();
  if (!all.contains("properties") || !all.at("properties").is_object()) all["properties"] = common_json::object();
  std::vector<std::string> names;
  for (const auto& property : all.at("properties").items()) names.push_back(property.key());
  for (const std::string& name : names) {
    common_json& schema = all["properties"][name];
    if (!schema.is_object()) schema = common_json::object();
    Types types = types_of(common_json(all), schema, 0);
    types.erase("null");
    if (types.size() > 1 && !real) types = {"any"};
    schema["type"] = types.empty() ? "null" : types.contains("string") ? "string" : *types.begin();
  }
  return all.dump();
}

std::string with_plain_types(const std::string& parameters) {
  common_json all = common_json::parse_no_throw(parameters);
  if (!all.is_object() || !all.contains("properties") || !all.at("properties").is_object()) return parameters;
  common_json properties = common_json::object();
  for (const auto& property : all.at("properties").items()) {
    const common_json& schema = property.value();
    const std::string type = schema.is_object() && schema.contains("type") && schema.at("type").is_string()
                                 ? schema.at("type").get<std::string>()
                                 : "";
    if (type == "string" || type == "number" || type == "integer" || type == "boolean") {
      properties[property.key()] = schema;
      continue;
    }
    const bool told = schema.is_object() && schema.contains("description") && schema.at("description").is_string();
    common_json plain = common_json::object();
    plain["type"] = nullptr;
    plain["description"] =
        (told ? schema.at("description").get<std::string>() + " " : std::string()) + "JSON schema: " + schema.dump();
    properties[property.key()] = std::move(plain);
  }
  all["properties"] = std::move(properties);
  return all.dump();
}

void add_types_of_values(common_json& parameters) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& property : parameters.at("properties").items()) {
    const common_json& schema = property.value();
    if (!schema.is_object() || (schema.contains("type") && schema.at("type").is_string())) continue;
    Types types = types_of(parameters, schema, 0);
    if (types.contains("string")) continue;
    if (types.size() > 1) types.erase("null");
    if (!types.empty()) found.emplace_back(property.key(), *types.begin());
  }
  for (const auto& [name, type] : found) {
    common_json& schema = parameters["properties"][name];
    if (schema.contains("type") && !schema.contains("anyOf") && !schema.contains("oneOf")) {
      common_json alternatives = common_json::array();
      for (const common_json& one : schema.at("type")) {
        alternatives.push_back(schema);
        alternatives.back()["type"] = one;
      }
      schema = {{"anyOf", std::move(alternatives)}};
    }
    schema["type"] = type;
  }
}

}  // namespace coppice::text
