// What two schemas say together. Both are flat: without $ref, allOf, const and boolean forms (schema_walk.h).
//
// Functions without state.
#pragma once

#include <boost/json/object.hpp>
#include <string>

namespace coppice::grammar {

/// A schema for what satisfies both. Subschemas that meet become {"allOf": [a, b]}; nothing is satisfied by {"enum":
/// []}. Throws SchemaError for `place` where the two can't be written as one.
boost::json::object merge_schemas(const boost::json::object& a, const boost::json::object& b, const std::string& place);

/// About the values and bytes that merge_schemas() looks at.
std::size_t merge_work(const boost::json::object& a, const boost::json::object& b);

/// Of a schema in any form. nullptr: no such field.
const boost::json::value* field_of(const boost::json::object& schema, std::string_view name);

/// false, or {"enum": []}.
bool is_false(const boost::json::value& schema);

}  // namespace coppice::grammar
