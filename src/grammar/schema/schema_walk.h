// SchemaWalk: from a client's schema to one that XGrammar enforces wholly. See json_schema.h for the rules.
//
// A schema is first made flat: $ref and allOf are merged into it, const becomes enum, older drafts' spellings become
// the newest. Then it is written anew, only with keywords whose enforcement is known. Parts that are referred to go
// into
// "$defs", once each, so that recursive schemas end.
//
// Used once, by one thread.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/pattern.h"
#include "grammar/schema/json_schema.h"
#include "grammar/schema/schema_refs.h"

namespace coppice::grammar {

/// Nothing satisfies the schema: an alternative like that is left out, all else is an error.
class UnsatisfiableError : public SchemaError {
 public:
  using SchemaError::SchemaError;
};

class SchemaWalk {
 public:
  SchemaWalk(const boost::json::value& root, bool strict) : root_(root), strict_(strict), refs_(root) {}
  boost::json::value run();
  /// Of the objects among what the schema allows. References to the root itself lead to all that it allows.
  boost::json::value run_object();
  /// Annotations that assert something.
  std::set<std::string> take_unheld() && { return std::move(unheld_); }

 private:
  using Value = boost::json::value;
  using Object = boost::json::object;
  using Array = boost::json::array;
  /// Where a schema stands: its JSON pointer, and the references that led here without a value in between.
  struct Location {
    std::string pointer;
    std::vector<std::string> chain;
    Location at(std::string_view name) const { return {under(pointer, name), chain}; }
    Location inside(std::string_view name) const { return {under(pointer, name), {}}; }
  };

  Value with_definitions(Value root);
  Value rewrite(const Value& schema, const Location& place);
  Value rewrite_flat(const Object& flat, const Location& place);
  Value reference(const Value& ref, const Location& place);
  Value rewrite_enum(const Object& flat, const Location& place);
  Value rewrite_choice(const Object& flat, std::string_view keyword, const Location& place);
  Value rewrite_type(std::uint8_t type, const Object& flat, const Location& place);

  // schema_types.cpp
  Value rewrite_string(const Object& flat, const Location& place);
  Value rewrite_number(const Object& flat, bool integer, const Location& place);
  Value rewrite_array(const Object& flat, const Location& place);
  const JsonPattern& pattern(const std::string& whole, const std::string& keyword, const Location& place);
  bool overlap(const JsonPattern& a, const JsonPattern& b, const Location& place);
  bool match(const JsonPattern& pattern, std::string_view name, const Location& place);

  // schema_object.cpp
  struct Properties;
  Value rewrite_object(const Object& flat, const Location& place);
  void apply_patterns(Properties& properties, const Location& place);
  void apply_names(Properties& properties, const Object& flat, const Location& place);
  void count_properties(const Object& flat, const Properties& properties, Object& out, const Location& place);
  bool accepts_name(const Value& schema, std::string_view name, const Location& place);

  // schema_flat.cpp
  Object flat(const Value& schema, const Location& place);
  Object flat_itself(const Object& schema, const Location& place);
  Object merge(const Object& a, const Object& b, const Location& place);
  void count_node(const Location& place);
  /// Counts work, about the values and bytes that are looked at or copied: a schema may hold its thread only for so
  /// long.
  void charge(std::size_t work, const Location& place);

  // schema_disjoint.cpp
  bool disjoint(const Object& a, const Object& b, const Location& place, int depth = 0);
  bool never_valid(const Object& written, const Object& schema, const Location& place, int depth);
  bool strangers(const Object& written, const Object& schema, const Location& place, int depth);

  const Value& root_;
  bool strict_;
  std::set<std::string> unheld_;
  SchemaRefs refs_;
  std::map<std::string, std::string> names_;  ///< of the targets of $ref by their place
  Object definitions_;
  std::map<std::string, JsonPattern> patterns_;
  std::map<std::pair<const JsonPattern*, const JsonPattern*>, bool> overlaps_;
  int n_nodes_ = 0;
  std::size_t work_ = 0;
};

// Functions of flat schemas.

/// The types that it allows; without "type", those that its keywords speak of.
std::uint8_t types_of(const boost::json::object& flat);
/// Does it hold the value to more than types, lengths, bounds and enum?
bool accepts(const boost::json::object& flat, const boost::json::value& value);
/// May objects have properties that it doesn't name?
bool is_open(const boost::json::object& flat);
/// A count: a whole number of at least 0. Throws SchemaError.
long count_of(const boost::json::object& flat, const char* keyword, long otherwise, const std::string& place);

}  // namespace coppice::grammar
