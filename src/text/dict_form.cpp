#include "text/dict_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "text/argument_list.h"

namespace coppice::text {

namespace {

constexpr const char* kQuote = R"(<|"|>)";

}  // namespace

std::string DictForm::value(const HeldSchema& held, const common_json* schema) {
  schema = held.resolved(schema);
  if (schema == nullptr) return any_;
  if (const auto at = known_.find(schema); at != known_.end()) return at->second;
  const std::string name = known_[schema] = rules_.reserve();
  rules_.define(name, body(held, *schema));
  return name;
}

std::string DictForm::body(const HeldSchema& held, const common_json& schema) {
  if (schema.contains("enum")) {
    std::string some;
    const std::string quote = rules_.literal(kQuote);
    for (const common_json& one : schema.at("enum")) {
      if (one.is_object() || one.is_array()) return any_;
      some += (some.empty() ? "" : " | ") +
              (one.is_string() ? fmt::format("{0} {1} {0}", quote, gbnf_literal(one.get<std::string>()))
                               : gbnf_literal(one.dump()));
    }
    return some;
  }
  if (schema.contains("anyOf")) {
    std::string some;
    for (const common_json& one : schema.at("anyOf")) some += (some.empty() ? "" : " | ") + value(held, &one);
    return some;
  }
  const std::string type =
      schema.contains("type") && schema.at("type").is_string() ? schema.at("type").get<std::string>() : "";
  if (type == "string")
    return fmt::format("{} {}", rules_.literal(kQuote),
                       strings_.rule(held, &schema, {.texts = {kQuote}, .closed = true}));
  if (type == "integer" || type == "number" || type == "boolean" || type == "null") return json_(&schema);
  if (type == "array" && !schema.contains("prefixItems")) {
    const std::string item = value(held, schema.contains("items") ? &schema.at("items") : nullptr);
    const int least = schema.value("minItems", 0);
    const std::string most =
        schema.contains("maxItems") ? std::to_string(std::max(schema.value("maxItems", 0) - 1, 0)) : "";
    const std::string some = fmt::format("{} (\",\" {}){{{},{}}}", item, item, std::max(least - 1, 0), most);
    return schema.value("maxItems", 1) == 0 ? "\"[]\""
           : least > 0                      ? fmt::format("\"[\" {} \"]\"", some)
                                            : fmt::format("\"[\" ({})? \"]\"", some);
  }
  if (type != "object") return any_;
  if (schema.contains("properties")) return object(held, schema);
  return schema.contains("additionalProperties") && schema.at("additionalProperties") == false ? "\"{}\"" : any_object_;
}

std::string DictForm::object(const HeldSchema& held, const common_json& schema) {
  std::set<std::string> required;
  if (schema.contains("required"))
    for (const common_json& name : schema.at("required")) required.insert(name.get<std::string>());
  ArgumentTexts texts{.before = "\",\"", .between_only = true};
  bool may_be_empty = true;
  for (const auto& property : schema.at("properties").items()) {
    const std::string& name = property.key();
    if (name.find_first_of(":}") != name.npos) continue;  // it can't be written
    const bool must = required.contains(name);
    may_be_empty &= !must;
    texts.items.push_back(
        {.text = fmt::format("{} {}", gbnf_literal(name + ":"), value(held, &property.value())), .required = must});
  }
  count_as(schema, 0, texts);
  may_be_empty &= texts.least == 0;
  if (!may_come(texts)) return "\"{}\"";
  return fmt::format("\"{{\" {}{} \"}}\"", arguments_rule(texts, rules_), may_be_empty ? "?" : "");
}

}  // namespace coppice::text
