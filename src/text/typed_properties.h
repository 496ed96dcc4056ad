// Types for properties of tools that name none, for templates that ask each property for one (Seed-OSS's).
//
// Pure function; any thread.
#pragma once

#include <string>

namespace coppice::text {

/// `parameters`: a JSON schema. It gets properties, if it has none, and each of these one type: its own, or that of its constant,
/// enumeration or alternatives, null left out. Where there may be several: "any", or (`real`) one of these, rather a string.
std::string with_types(const std::string& parameters, bool real);

}  // namespace coppice::text
