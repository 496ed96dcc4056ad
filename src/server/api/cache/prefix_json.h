// Pinned prefixes as JSON.
#pragma once

#include <string>

#include "engine/pinned_prefix.h"
#include "server/api/base/json.h"
#include "server/base/request_error.h"

namespace coppice::server {

JsonObject prefix_json(const engine::PrefixInfo& prefix);
std::string prefix_list_json(const engine::PrefixAnswer& answer);
std::string cache_reset_json(const engine::PrefixAnswer& answer);

/// Why a prefix was not pinned. `share`: whether requests share prefixes at all.
RequestError pin_error(const engine::PinOutcome& refused, bool share);

}  // namespace coppice::server
