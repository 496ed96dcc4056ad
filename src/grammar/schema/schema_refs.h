// SchemaRefs: where a schema's $refs point. Local ones only: nothing is ever fetched.
//
// Refers to the root, which outlives it. Const methods may be called by any thread.
#pragma once

#include <boost/json/value.hpp>
#include <map>
#include <string>
#include <string_view>

namespace coppice::grammar {

class SchemaRefs {
 public:
  explicit SchemaRefs(const boost::json::value& root);

  struct Target {
    const boost::json::value* schema;
    std::string pointer;  ///< its JSON pointer: names it, however it was referred to
  };
  /// Throws SchemaError for `place`, whose $ref it is: another document, or nothing there.
  Target resolve(std::string_view ref, const std::string& place) const;

 private:
  void learn_anchors(const boost::json::value& value, const std::string& place);

  const boost::json::value& root_;
  std::string id_;  ///< of the root; empty: none
  std::map<std::string, Target, std::less<>> anchors_;
};

/// place + "/" + name, with ~ and / escaped.
std::string under(const std::string& place, std::string_view name);
std::string under(const std::string& place, std::size_t index);

}  // namespace coppice::grammar
