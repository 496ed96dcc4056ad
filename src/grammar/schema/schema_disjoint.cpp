// oneOf: can a text that was written by one alternative satisfy another? What is written names no properties that its
// schema doesn't, so that more alternatives are told apart than JSON Schema's own rules would.
#include <algorithm>
#include <optional>

#include "grammar/schema/schema_merge.h"
#include "grammar/schema/schema_walk.h"
#include "grammar/schema/search_pattern.h"
#include "grammar/schema/values.h"
#include "grammar/source.h"

namespace coppice::grammar {

namespace {

using boost::json::object;
using boost::json::value;

constexpr int kMaxDepth = 4;  ///< values in values

bool has_name(const object& flat, std::string_view list, std::string_view name) {
  const value* names = flat.if_contains(list);
  if (names == nullptr) return false;
  if (const auto* fields = names->if_object()) return fields->contains(name);
  return std::ranges::find(names->get_array(), value(name)) != names->get_array().end();
}

/// May a text written by the schema have this property?
bool may_write(const object& written, std::string_view name) {
  return has_name(written, "properties", name) || has_name(written, "required", name) || is_open(written) ||
         written.contains("patternProperties");
}

std::size_t n_values(const object& flat) {
  const value* values = flat.if_contains("enum");
  return values == nullptr ? 0 : values->get_array().size();
}

const value* property(const object& flat, std::string_view name) {
  const value* properties = flat.if_contains("properties");
  return properties == nullptr ? nullptr : properties->get_object().if_contains(name);
}

}  // namespace

bool SchemaWalk::disjoint(const Object& a, const Object& b, const Location& place, int depth) {
  return never_valid(a, b, place, depth) && never_valid(b, a, place, depth);
}

bool SchemaWalk::never_valid(const Object& written, const Object& schema, const Location& place, int depth) {
  if (depth > kMaxDepth) return false;
  charge(16 + n_values(written) * std::max(n_values(schema), std::size_t{1}) + n_values(schema), place);
  if (written.contains("anyOf") || written.contains("oneOf")) return false;
  if (const Value* values = written.if_contains("enum"))
    return std::ranges::none_of(values->get_array(), [&](const Value& v) { return accepts(schema, v); });
  std::uint8_t types = types_of(written);
  // A schema without types has an opinion on those only that its keywords speak of.
  if (schema.contains("type")) {
    if ((types & types_of(schema)) == 0) return true;
    types &= types_of(schema);
  }
  if (const Value* values = schema.if_contains("enum");
      values != nullptr &&
      std::ranges::none_of(values->get_array(), [&](const Value& v) { return accepts(written, v); }))
    return true;
  if (types == kObject) return strangers(written, schema, place, depth);
  if (types == kString) {
    const Value *x = written.if_contains("pattern"), *y = schema.if_contains("pattern");
    if (x == nullptr || y == nullptr) return false;
    try {
      const std::string ours = whole_pattern(x->get_string()), theirs = whole_pattern(y->get_string());
      return !overlap(pattern(ours, "pattern", place), pattern(theirs, "pattern", place), place);
    } catch (const GrammarError&) {
      return false;
    }
  }
  if ((types & ~kNumber) == 0) {
    const auto bound = [](const Object& flat, const char* name) -> std::optional<double> {
      const Value* b = flat.if_contains(name);
      return b == nullptr ? std::nullopt : std::optional(b->to_number<double>());
    };
    const auto ends_before = [&](const Object& low, const Object& high) {
      const auto most = bound(low, "maximum"), least = bound(high, "minimum");
      const auto below = bound(low, "exclusiveMaximum"), above = bound(high, "exclusiveMinimum");
      return (most && ((least && *most < *least) || (above && *most <= *above))) ||
             (below && ((least && *below <= *least) || (above && *below <= *above)));
    };
    return ends_before(written, schema) || ends_before(schema, written);
  }
  return false;
}

/// Objects: a name that one needs and the other never has, or a value that can't be the other's.
bool SchemaWalk::strangers(const Object& written, const Object& schema, const Location& place, int depth) {
  if (const Value* needed = schema.if_contains("required")) {
    if (std::ranges::any_of(needed->get_array(),
                            [&](const Value& name) { return !may_write(written, name.get_string()); }))
      return true;
  }
  const Value* always = written.if_contains("required");
  if (always == nullptr) return false;
  const Value* rest = schema.if_contains("additionalProperties");
  return std::ranges::any_of(always->get_array(), [&](const Value& name) {
    const std::string_view key = name.get_string();
    const Value *ours = property(written, key), *theirs = property(schema, key);
    if (theirs == nullptr) return rest != nullptr && is_false(*rest) && !schema.contains("patternProperties");
    if (ours == nullptr) return false;
    const Location at = place.inside("properties");
    return never_valid(flat(*ours, at), flat(*theirs, at), place, depth + 1);
  });
}

}  // namespace coppice::grammar
