// Strings that a model writes as they are, without quotes and escapes, up to a mark that ends them: the grammar of
// those that a schema allows.
//
// An enumeration's texts stand in the grammar. A pattern or a format is a rule that the grammar's compiler holds
// (BareText). A text of a greatest length has no control characters, and none with which its end begins: as JSON
// strings of a length have no escapes.
//
// For this folder's .cpp files. Refers to the rules, which outlive it.
#pragma once

#include <json.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "text/gbnf_text.h"
#include "text/held_schema.h"
#include "text/tool_chat.h"

namespace coppice::text {

class BareStrings {
 public:
  explicit BareStrings(GbnfRules& rules) : rules_(rules) {}

  /// What ends a string: the first of these texts.
  struct Ends {
    std::vector<std::string> texts;
    bool closed = false;    ///< the end belongs to the string's rule
    std::string not_first;  ///< with which no string begins; empty: with any
  };
  /// The rule of the schema's strings. `schema`: nullptr: all strings. `held`: whose the schema is.
  std::string rule(const HeldSchema& held, const common_json* schema, const Ends& ends);

  std::map<std::string, BareText> take_rules() && { return std::move(bare_); }

 private:
  std::string one(const common_json& schema, const Ends& ends);
  std::string of_regex(const common_json& schema, const Ends& ends);

  GbnfRules& rules_;
  std::map<std::string, BareText> bare_;
  /// Rules by schema, texts that end a string, and the one with which none begins.
  std::map<std::tuple<std::string, std::vector<std::string>, std::string>, std::string> known_;
};

}  // namespace coppice::text
