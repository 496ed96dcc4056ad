#include "text/held_schema.h"

#include <string_view>

namespace coppice::text {

HeldSchema::HeldSchema(const ToolSpec& tool) {
  if (!tool.held.empty()) {
    root_ = std::make_unique<const common_json>(common_json::parse(tool.held));
    known_.insert(root_.get());
  }
}

void HeldSchema::add_alternatives(const common_json* schema, int depth, std::vector<const common_json*>& to) const {
  constexpr int kMostDepth = 8;
  constexpr std::size_t kMostAlternatives = 256;
  const common_json* own = resolved(schema);
  if (own == nullptr || depth > kMostDepth || to.size() > kMostAlternatives) return;
  if (own->contains("anyOf") && own->at("anyOf").is_array()) {
    for (const common_json& one : own->at("anyOf")) add_alternatives(&one, depth + 1, to);
  } else if (own->contains("properties") || (own->contains("type") && own->at("type") == "object")) {
    to.push_back(own);
  }
}

std::vector<const common_json*> HeldSchema::alternatives(const common_json* schema) const {
  std::vector<const common_json*> all;
  add_alternatives(schema, 0, all);
  return all;
}

bool HeldSchema::is_required(const common_json& object, const std::string& name) {
  if (!object.contains("required") || !object.at("required").is_array()) return false;
  for (const common_json& one : object.at("required"))
    if (one.is_string() && one.get<std::string>() == name) return true;
  return false;
}

std::size_t HeldSchema::n_required(const common_json& object) {
  std::set<std::string> names;
  if (object.contains("required") && object.at("required").is_array())
    for (const common_json& one : object.at("required"))
      if (one.is_string()) names.insert(one.get<std::string>());
  return names.size();
}

bool HeldSchema::may_have(const common_json& object, const std::string& name) {
  if (object.contains("properties") && object.at("properties").contains(name)) return true;
  return object.contains("additionalProperties") ? object.at("additionalProperties") != false
                                                 : !object.contains("properties");
}

bool HeldSchema::allows_text(const common_json* schema, int depth) const {
  constexpr int kMostDepth = 8;
  const common_json* own = resolved(schema);
  if (own == nullptr || depth > kMostDepth) return true;
  if (own->contains("anyOf") && own->at("anyOf").is_array()) {
    for (const common_json& one : own->at("anyOf"))
      if (allows_text(&one, depth + 1)) return true;
    return false;
  }
  if (own->contains("enum")) return !texts(own).empty();
  return !own->contains("type") || own->at("type") == "string";
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
  if (object == nullptr) return nullptr;
  const bool named = object->contains("properties") && object->at("properties").contains(name);
  if (!named && !object->contains("additionalProperties")) return nullptr;
  const common_json* found = resolved(named ? &object->at("properties").at(name) : &object->at("additionalProperties"));
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
