// Plain questions to JSON values, as JSON Schema sees them: 1 and 1.0 are equal, and both are integers.
#pragma once

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace coppice::grammar {

/// A set of types, a bit each. An integer is a number, too: number has both bits.
enum Types : std::uint8_t {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,  ///< numbers that are no integers
  kNumber = kInteger | kFraction,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAnyType = 127,
};

/// 0: no type has this name.
std::uint8_t type_named(std::string_view name);
std::uint8_t type_of(const boost::json::value& value);
bool equal_values(const boost::json::value& a, const boost::json::value& b);
/// Values in it, and the bytes of their texts and names: about what a copy takes.
std::size_t weight(const boost::json::value& v);
std::size_t weight(const boost::json::array& list);
std::size_t weight(const boost::json::object& fields);

bool is_listed(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Of a string in UTF-8.
std::size_t code_points(std::string_view text);

}  // namespace coppice::grammar
