// Why a text is no JSON, in words for whoever wrote the client: a place and, where it is a usual one, the cause.
#pragma once

#include <string>
#include <string_view>

namespace coppice::server {

/// "single quotes: JSON's strings stand in double quotes (line 1, column 2)". Columns count characters, from 1.
/// REQUIRES: boost::json refuses `text`, at depth `max_depth` or before. Takes as long as parsing it twice.
std::string json_fault(std::string_view text, std::size_t max_depth);

}  // namespace coppice::server
