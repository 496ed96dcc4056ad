// Objects: which properties they may have, and what these hold.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "grammar/schema/schema_merge.h"
#include "grammar/schema/schema_walk.h"
#include "grammar/schema/search_pattern.h"
#include "grammar/schema/values.h"
#include "grammar/source.h"

namespace coppice::grammar {

using boost::json::array;
using boost::json::object;
using boost::json::value;

namespace {

constexpr long kMostNamed = 100;

}  // namespace

/// An object schema on its way.
struct SchemaWalk::Properties {
  std::vector<std::pair<std::string, Value>> named;  ///< not yet rewritten
  std::set<std::string, std::less<>> required;
  bool open = false;                                    ///< others are allowed
  Value rest = true;                                    ///< what they hold
  std::vector<std::pair<std::string, Value>> patterns;  ///< by regexes of whole names
};

bool is_open(const object& flat) {
  const value* rest = flat.if_contains("additionalProperties");
  if (rest != nullptr) return !is_false(*rest);
  // Strict, but for an object of which nothing is said.
  return !flat.contains("properties") && !flat.contains("patternProperties");
}

bool SchemaWalk::accepts_name(const Value& schema, std::string_view name, const Location& place) {
  const Object names = flat(schema, place);
  if (!accepts(names, Value(name))) return false;
  for (const char* keyword : {"anyOf", "oneOf", "format"})
    if (names.contains(keyword)) throw SchemaError(keyword, place.pointer, "not supported for names of properties");
  const Value* regex = names.if_contains("pattern");
  if (regex == nullptr) return true;
  try {
    const std::string whole = whole_pattern(regex->get_string());
    return match(pattern(whole, "pattern", place), name, place);
  } catch (const GrammarError& e) {
    throw SchemaError("pattern", place.pointer, fmt::format("not supported: {}", e.what()));
  }
}

/// A name that a pattern matches holds what the pattern says, too; and the pattern must not bring the name a second
/// time.
void SchemaWalk::apply_patterns(Properties& properties, const Location& place) {
  std::vector<const JsonPattern*> compiled;
  std::set<std::string> taken;  ///< patterns that match a named property
  for (auto& [regex, schema] : properties.patterns) {
    try {
      regex = whole_pattern(regex);
    } catch (const GrammarError& e) {
      throw SchemaError("patternProperties", place.pointer, fmt::format("not supported: {}", e.what()));
    }
    compiled.push_back(&pattern(regex, "patternProperties", place));
  }
  for (auto& [name, schema] : properties.named) {
    for (std::size_t i = 0; i < compiled.size(); ++i) {
      if (!match(*compiled[i], name, place)) continue;
      schema = Object{{"allOf", Array{schema, properties.patterns[i].second}}};
      taken.insert(properties.patterns[i].first);
    }
  }
  for (std::size_t i = 0; i < compiled.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (properties.patterns[i].second != properties.patterns[j].second && overlap(*compiled[i], *compiled[j], place))
        throw SchemaError("patternProperties", place.pointer, "patterns that match the same name must hold the same");
    }
  }
  // Names by a pattern and names by none at once would mix: the patterns' are kept.
  if (!properties.patterns.empty()) properties.open = false;
  std::erase_if(properties.patterns, [&](const auto& p) { return taken.contains(p.first) || is_false(p.second); });
}

/// propertyNames: asked of the named ones, enforced for all others.
void SchemaWalk::apply_names(Properties& properties, const Object& flat, const Location& place) {
  const Value& names = flat.at("propertyNames");
  const Location at = place.inside("propertyNames");
  std::erase_if(properties.named, [&](const auto& property) {
    if (accepts_name(names, property.first, at)) return false;
    if (properties.required.contains(property.first))
      throw UnsatisfiableError("propertyNames", place.pointer, "forbids a required property");
    return true;
  });
  if (!properties.patterns.empty())
    throw SchemaError("propertyNames", place.pointer, "not together with patternProperties");
}

/// minProperties and maxProperties. A name that comes twice counts twice for the grammar, and once for who reads it.
void SchemaWalk::count_properties(const Object& flat, const Properties& properties, Object& out,
                                  const Location& place) {
  const auto n_required = static_cast<long>(properties.required.size()),
             n_named = static_cast<long>(properties.named.size());
  const long least = count_of(flat, "minProperties", 0, place.pointer),
             most = count_of(flat, "maxProperties", -1, place.pointer);
  const bool others = properties.open || !properties.patterns.empty();
  if (least > n_required) {
    if (others && least > 1)
      throw SchemaError("minProperties", place.pointer, "only 1 is supported where names are free");
    if (!others && least > n_named) throw UnsatisfiableError("minProperties", place.pointer, "more than there are");
    out["minProperties"] = least;
  }
  if (most >= 0 && n_required > most)
    throw UnsatisfiableError("maxProperties", place.pointer, "fewer than are required");
  if (most >= 0 && (others || most < n_named)) out["maxProperties"] = most;
  // Each name is written once for each count of names before it.
  if ((out.contains("minProperties") || out.contains("maxProperties")) && n_named > kMostNamed)
    throw SchemaError(out.contains("minProperties") ? "minProperties" : "maxProperties", place.pointer,
                      fmt::format("not with more than {} named properties", kMostNamed));
}

value SchemaWalk::rewrite_object(const Object& flat, const Location& place) {
  Properties p;
  p.open = is_open(flat);
  if (const Value* rest = flat.if_contains("additionalProperties")) p.rest = *rest;
  const Value* named_ones = flat.if_contains("properties");
  if (named_ones != nullptr)
    for (const auto& field : named_ones->get_object()) p.named.emplace_back(field.key(), field.value());
  if (const Value* patterns = flat.if_contains("patternProperties"))
    for (const auto& field : patterns->get_object()) p.patterns.emplace_back(field.key(), field.value());
  if (const Value* required = flat.if_contains("required"))
    for (const Value& name : required->get_array()) p.required.emplace(name.get_string());
  for (const std::string& name : p.required) {
    if (named_ones == nullptr || !named_ones->get_object().contains(name))
      p.named.emplace_back(name, p.patterns.empty() ? p.rest : Value(true));
  }
  const bool free_names = p.open;
  apply_patterns(p, place);
  if (flat.contains("propertyNames") && flat.at("propertyNames") != Value(true)) {
    apply_names(p, flat, place);
    // Keys by a rule could be named ones, too: then there are no others than these.
    if (!p.named.empty()) p.open = false;
  }

  Object out{{"type", "object"}}, named;
  for (auto& [name, schema] : p.named) {
    try {
      named[name] = rewrite(schema, place.inside("properties").at(name));
    } catch (const UnsatisfiableError&) {
      if (p.required.contains(name)) throw;
      if (free_names && p.open)
        throw SchemaError("properties", under(place.pointer, name), "forbidden by name where other names are free");
    }
  }
  std::erase_if(p.named, [&](const auto& property) { return !named.contains(property.first); });
  count_properties(flat, p, out, place);
  if (!named.empty()) out["properties"] = std::move(named);
  if (!p.required.empty()) out["required"] = Array(p.required.begin(), p.required.end());
  if (!p.patterns.empty()) {
    Object patterns;
    for (const auto& [regex, schema] : p.patterns) patterns[regex] = rewrite(schema, place.inside("patternProperties"));
    out["patternProperties"] = std::move(patterns);
    out["additionalProperties"] = false;
  } else if (p.open) {
    Value rest = true;
    try {
      rest = rewrite(p.rest, place.inside("additionalProperties"));
      if (rest.is_object() && rest.get_object().empty()) rest = true;
    } catch (const UnsatisfiableError&) {
      rest = false;
    }
    if (flat.contains("propertyNames") && flat.at("propertyNames") != Value(true)) {
      Object names = this->flat(flat.at("propertyNames"), place.inside("propertyNames"));
      names["type"] = Array{"string"};
      out["propertyNames"] = rewrite_flat(names, place.inside("propertyNames"));
    }
    out["additionalProperties"] = std::move(rest);
  } else {
    out["additionalProperties"] = false;
  }
  return out;
}

}  // namespace coppice::grammar
