// Text in place of what a tool's result holds besides text: the conversation goes on, and the model hears that
// something is missing.
//
// Any thread may call it.
#pragma once

#include <string>

namespace coppice::server {

/// `type`: of the part, as the API calls it ("image_url", "document"). The log says once for each type and route that
/// it is left out.
std::string left_out(const std::string& route, const std::string& type);

}  // namespace coppice::server
