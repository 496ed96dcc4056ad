// HeldSchema: what a tool's schema says of its arguments, one by one (ToolSpec::held, whose references all go to
// "$defs").
//
// Immutable. For this folder's .cpp files.
#pragma once

#include <json.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "text/tool_chat.h"

namespace coppice::text {

class HeldSchema {
 public:
  explicit HeldSchema(const ToolSpec& tool);

  /// Of all arguments; nullptr: nothing is held. This and all below live as long as the HeldSchema.
  const common_json* root() const { return root_.get(); }
  /// Of an object's property, named or not, or an array's items; nullptr: it isn't known. `schema` may be nullptr.
  const common_json* property(const common_json* schema, const std::string& name) const;
  const common_json* items(const common_json* schema) const;
  /// The schemas of objects among which a schema chooses: itself, if it is one. `schema` may be nullptr.
  std::vector<const common_json*> alternatives(const common_json* schema) const;
  /// One that root(), property() or items() returned, but for nullptr.
  bool owns(const common_json* schema) const { return known_.contains(schema); }

  /// The schema by itself, as JSON, with what it refers to.
  std::string text_of(const common_json& schema) const;

  /// The strings that a schema of an enumeration allows. Empty: there are none, or it is none, or nullptr.
  static std::vector<std::string> texts(const common_json* schema);

  /// Do an object's values have this property always, may they have it?
  static bool is_required(const common_json& object, const std::string& name);
  static std::size_t n_required(const common_json& object);
  static bool may_have(const common_json& object, const std::string& name);
  /// May a value of the schema be a string? nullptr: it may.
  bool allows_text(const common_json* schema, int depth = 0) const;

  /// Where its reference leads; nullptr: nowhere.
  const common_json* resolved(const common_json* schema) const;

 private:
  void add_alternatives(const common_json* schema, int depth, std::vector<const common_json*>& to) const;

  std::unique_ptr<const common_json> root_;
  mutable std::set<const common_json*> known_;
};

}  // namespace coppice::text
