// Types for properties of tools that name none: for templates that ask each property for one (Seed-OSS's), and for the
// library's parsers that take a value without a type for a string (Kimi K3's).
//
// Pure functions; any thread.
#pragma once

#include <json.h>

#include <string>

namespace coppice::text {

/// `parameters`: a JSON schema. It gets properties, if it has none, and each of these one type: its own, or that of its
/// constant, enumeration or alternatives, null left out. Where there may be several: "any", or (`real`) one of these,
/// rather a string.
std::string with_types(const std::string& parameters, bool real);

/// For templates that fail where a property is a list or an object (Command R+'s): each whose type is none of the plain
/// ones has null for it, and its schema stands in its description.
std::string with_plain_types(const std::string& parameters);

/// Where the schema of a property leads by its references within `root`; nullptr: nowhere.
const common_json* referred(const common_json& root, const common_json& schema);

/// `parameters`: an object with properties. Each that is never a string gets one of its types beside what it says.
void add_types_of_values(common_json& parameters);

}  // namespace coppice::text
