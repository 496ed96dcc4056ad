#include "text/parser_parameters.h"

#include <json.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "text/typed_properties.h"

namespace coppice::text {

namespace {

/// Without patterns at any depth.
void drop_patterns(common_json& schema) {
  if (schema.is_object() && schema.contains("pattern") && schema.at("pattern").is_string()) schema.erase("pattern");
  if (schema.is_object() || schema.is_array())
    for (common_json& part : schema) drop_patterns(part);
}

/// The properties of a schema and of all that it refers to or chooses from, in their order. The schema outlives it.
class Gatherer {
 public:
  explicit Gatherer(const common_json& root) : root_(root) { add(root, 0); }

  common_json all() const {
    common_json properties = common_json::object();
    for (const auto& [name, schemas] : properties_) {
      properties[name] = *schemas.front();
      if (schemas.size() == 1) continue;
      properties[name] = {{"anyOf", common_json::array()}};
      for (const common_json* one : schemas) properties[name]["anyOf"].push_back(*one);
    }
    return properties;
  }

 private:
  void add(const common_json& schema, int depth) {
    constexpr int kMostDepth = 8, kMostSchemas = 1000;
    if (!schema.is_object() || depth > kMostDepth || ++n_schemas_ > kMostSchemas) return;
    if (schema.contains("properties") && schema.at("properties").is_object())
      for (const auto& property : schema.at("properties").items()) add_property(property.key(), property.value());
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(name) || !schema.at(name).is_array()) continue;
      for (const common_json& one : schema.at(name)) add(one, depth + 1);
    }
    if (!schema.contains("$ref")) return;
    if (const common_json* target = referred(root_, schema)) add(*target, depth + 1);
  }

  void add_property(const std::string& name, const common_json& schema) {
    auto known = std::ranges::find(properties_, name, &Property::name);
    if (known == properties_.end()) known = properties_.insert(known, {.name = name, .schemas = {}});
    if (std::ranges::none_of(known->schemas, [&](const common_json* one) { return *one == schema; }))
      known->schemas.push_back(&schema);
  }

  struct Property {
    std::string name;
    std::vector<const common_json*> schemas;  ///< different ones
  };

  const common_json& root_;
  int n_schemas_ = 0;
  std::vector<Property> properties_;
};

/// Does it say anything of its values but what its properties say?
bool is_plain(const common_json& schema) {
  for (const char* name : {"$ref", "anyOf", "oneOf", "allOf", "const", "enum"})
    if (schema.contains(name)) return false;
  return !schema.contains("type") || schema.at("type") == "object";
}

/// A schema that stands elsewhere than its references lead to.
common_json without_references(const common_json& schema) {
  return schema.dump().find("\"$ref\"") == std::string::npos ? schema : common_json::object();
}

}  // namespace

std::string parser_parameters(const ToolSpec& tool) {
  common_json all = common_json::parse_no_throw(tool.parameters);
  if (!all.is_object()) return tool.parameters;
  drop_patterns(all);
  common_json held = common_json::parse_no_throw(tool.held);
  drop_patterns(held);
  if (is_plain(all)) {
    common_json properties = Gatherer(all).all();
    // A name that is required may stand in no list of properties.
    for (const auto& property : Gatherer(held).all().items())
      if (!properties.contains(property.key())) properties[property.key()] = without_references(property.value());
    all["properties"] = std::move(properties);
  } else {
    const bool known = !Gatherer(held).all().empty();
    const common_json& from = known ? held : all;
    common_json flat = {{"type", "object"}, {"properties", Gatherer(from).all()}};
    for (const char* name : {"$defs", "definitions"})
      if (from.contains(name)) flat[name] = from.at(name);
    all = std::move(flat);
  }
  add_types_of_values(all);
  return all.dump();
}

}  // namespace coppice::text
