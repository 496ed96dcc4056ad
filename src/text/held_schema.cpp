#include "text/held_schema.h"

#include <string_view>

namespace coppice::text {

HeldSchema::HeldSchema(const ToolSpec& tool) {
  if (!tool.held.empty()) {
    root_ = std::make_unique<const common_json>(common_json::parse(tool.held));
    known_.insert(root_.get());
  }
  const common_json all = common_json::parse_no_throw(tool.held.empty() ? tool.parameters : tool.held);
  if (!all.is_object() || !all.contains("required") || !all.at("required").is_array()) return;
  for (const common_json& name : all.at("required"))
    if (name.is_string()) required_.insert(name.get<std::string>());
}

const common_json* HeldSchema::resolved(const common_json* schema) const {
  constexpr std::string_view kDefinitions = "#/$defs/";
  for (int i = 0; schema != nullptr && schema->is_object() && schema->contains("$ref"); ++i) {
    const std::string ref = schema->at("$ref").get<std::string>();
    if (i > 8 || !ref.starts_with(kDefinitions) || !root_->contains("$defs")) return nullptr;
    const common_json& definitions = root_->at("$defs");
    const std::string name = ref.substr(kDefinitions.size());
    schema = definitions.contains(name) ? &definitions.at(name) : nullptr;
  }
  return schema != nullptr && schema->is_object() ? schema : nullptr;
}

const common_json* HeldSchema::property(const common_json* schema, const std::string& name) const {
  const common_json* object = resolved(schema);
  if (object == nullptr || !object->contains("properties") || !object->at("properties").contains(name)) return nullptr;
  const common_json* found = resolved(&object->at("properties").at(name));
  if (found != nullptr) known_.insert(found);
  return found;
}

const common_json* HeldSchema::items(const common_json* schema) const {
  const common_json* array = resolved(schema);
  if (array == nullptr || !array->contains("items")) return nullptr;
  const common_json* found = resolved(&array->at("items"));
  if (found != nullptr) known_.insert(found);
  return found;
}

std::string HeldSchema::text_of(const common_json& schema) const {
  if (&schema == root_.get()) return root_->dump();
  std::string text = schema.dump();
  if (text.find("\"$ref\"") == text.npos || !root_->contains("$defs")) return text;
  common_json with = schema;
  with["$defs"] = root_->at("$defs");
  return with.dump();
}

std::vector<std::string> HeldSchema::texts(const common_json* schema) {
  std::vector<std::string> texts;
  if (schema == nullptr || !schema->contains("enum") || !schema->at("enum").is_array()) return texts;
  for (const common_json& value : schema->at("enum"))
    if (value.is_string()) texts.push_back(value.get<std::string>());
  return texts;
}

}  // namespace coppice::text
