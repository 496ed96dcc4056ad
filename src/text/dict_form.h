// Gemma 4's arguments: {city:<|"|>Paris<|"|>,days:3}. Names stand bare, strings between marks of their own.
//
// For this folder's .cpp files.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "text/bare_strings.h"
#include "text/gbnf_text.h"
#include "text/held_schema.h"

namespace coppice::text {

class DictForm {
 public:
  /// `json`: the rule of a value that is written as JSON. `any`, `any_object`: the rules of any value, and of any
  /// object.
  DictForm(GbnfRules& rules, BareStrings& strings, std::function<std::string(const common_json*)> json, std::string any,
           std::string any_object)
      : rules_(rules),
        strings_(strings),
        json_(std::move(json)),
        any_(std::move(any)),
        any_object_(std::move(any_object)) {}

  /// The rule of values of a schema; nullptr: of any.
  std::string value(const HeldSchema& held, const common_json* schema);

 private:
  std::string body(const HeldSchema& held, const common_json& schema);
  std::string object(const HeldSchema& held, const common_json& schema);

  GbnfRules& rules_;
  BareStrings& strings_;
  std::function<std::string(const common_json*)> json_;
  std::string any_, any_object_;
  std::map<const common_json*, std::string> known_;
};

}  // namespace coppice::text
