// JSON of requests and answers: Boost.JSON (docs/decisions.md, "Boost.JSON"). Any thread, as long as nobody changes the
// value.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>

namespace coppice::server {

using Json = boost::json::value;
using JsonArray = boost::json::array;
using JsonObject = boost::json::object;  ///< keeps the order of its fields

/// The text of a JSON string. REQUIRES: string.is_string().
inline std::string to_string(const Json& string) {
  return std::string(string.get_string());
}

/// Whether a number in it, at any depth, was too large for a double.
bool has_infinity(const Json& json);

/// The JSON as one line of UTF-8. Invalid UTF-8 is replaced, and what is too large for a double becomes the largest
/// one.
std::string dump(const Json& json);

}  // namespace coppice::server
