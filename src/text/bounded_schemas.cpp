#include "text/bounded_schemas.h"

#include <json.h>

#include <algorithm>
#include <string>

namespace coppice::text {

namespace {

struct Size {
  std::size_t values = 0, properties = 0;
};

bool has_properties(const common_json& schema) {
  return schema.is_object() && schema.contains("properties") && schema.at("properties").is_object();
}

/// As far as the bounds go. Bodies are nested 64 deep at most.
void add_size(const common_json& value, Size& to) {
  ++to.values;
  if (to.values > SchemaBounds::kValues || !(value.is_object() || value.is_array())) return;
  if (has_properties(value)) to.properties += value.at("properties").size();
  for (const common_json& part : value) add_size(part, to);
}

}  // namespace

std::string names_alone(const std::string& parameters, std::size_t most) {
  common_json names = {{"type", "object"}, {"properties", common_json::object()}};
  const common_json schema = most == 0 ? common_json() : common_json::parse_no_throw(parameters);
  if (!has_properties(schema)) return names.dump();
  for (const auto& property : schema.at("properties").items()) {
    if (most-- == 0) break;
    names["properties"][property.key()] = common_json::object();
  }
  return names.dump();
}

void bound_schemas(std::span<ToolSpec> tools) {
  std::size_t bytes = SchemaBounds::kBytes, values = SchemaBounds::kValues, properties = SchemaBounds::kProperties;
  for (ToolSpec& tool : tools) {
    if (tool.parameters.size() > bytes) {
      tool.parameters = names_alone({}, 0);
      continue;
    }
    bytes -= tool.parameters.size();
    const common_json schema = common_json::parse_no_throw(tool.parameters);
    Size size;
    add_size(schema, size);
    if (size.values <= values && size.properties <= properties) {
      values -= size.values;
      properties -= size.properties;
      continue;
    }
    const std::size_t kept =
        std::min({has_properties(schema) ? schema.at("properties").size() : 0, values, properties});
    tool.parameters = names_alone(tool.parameters, kept);
    values -= kept;
    properties -= kept;
  }
}

}  // namespace coppice::text
