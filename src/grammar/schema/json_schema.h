// JSON Schemas that a grammar can hold a text to. XGrammar leaves out what it doesn't know, without a word: so each
// schema is walked first, every keyword that asserts something is either rewritten into what XGrammar enforces or
// refused by name, and only the result goes there.
//
// What is written by the result validates against the schema that came. Not the other way round: of what the schema
// leaves open, the strict way is taken. Objects with properties have no others unless additionalProperties says so,
// properties come in the schema's order, strings with a pattern or a length hold no escapes, and a schema without a
// type means the type that its keywords speak of.
//
// Thread safety: enforceable_schema() is a function without state.
#pragma once

#include <boost/json/value.hpp>
#include <set>
#include <stdexcept>
#include <string>

namespace coppice::grammar {

/// A schema that can't be enforced. keyword(): the culprit; place(): a JSON pointer to the schema that has it.
class SchemaError : public std::runtime_error {
 public:
  SchemaError(std::string keyword, std::string place, const std::string& reason);
  const std::string& keyword() const { return keyword_; }
  const std::string& place() const { return place_; }

 private:
  std::string keyword_, place_;
};

/// The schema as compact JSON for Kind::kJsonSchema. Throws SchemaError, also where finding out would take too long:
/// any schema of up to kMaxSourceBytes takes some 0.1 s and 100 MB at most.
/// Formats that aren't known are annotations. uniqueItems is one, too, unless `strict`. `unheld`: if not null, gets
/// these, as "format 'phone'". REQUIRES: nested no deeper than 64.
std::string enforceable_schema(const boost::json::value& schema, bool strict = false,
                               std::set<std::string>* unheld = nullptr);

/// The same of a tool's arguments, which are an object whatever the schema says: it becomes a schema of objects, or of
/// alternatives that are ones. Throws SchemaError, too, where it allows none.
std::string enforceable_arguments(const boost::json::value& schema, bool strict = false,
                                  std::set<std::string>* unheld = nullptr);

}  // namespace coppice::grammar
