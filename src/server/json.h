// JSON of requests and answers: Boost.JSON (docs/adr/0013-json-library.md).
//
// Its destructors allocate nothing and throw nothing, so a want of memory ends a request, never the process.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>

namespace coppice::server {

using Json = boost::json::value;
using JsonArray = boost::json::array;
using JsonObject = boost::json::object;  ///< keeps the order of its fields

/// One line; invalid UTF-8 is replaced.
std::string dump(const Json& json);

}  // namespace coppice::server
