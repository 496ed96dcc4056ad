// What a client, or the log, is told of why a prefix did not match further [S5].
#pragma once

#include "engine/request.h"
#include "server/json.h"
#include "server/model.h"

namespace coppice::server {

/// How much of it the operator lets out.
enum class CacheReports : std::uint8_t {
  kText,     ///< also how the cached text goes on: it may be another client's, of the same salt
  kLengths,  ///< only the client's own text
  kOff,      ///< requests that ask are refused
};

/// {"prompt_tokens", "matched_tokens", "ended", "why", "text": {"before", "asked", "found"}, "lost_tokens",
/// "lost_seconds"}. "found" only where the text differs, and with kText.
JsonObject cache_report_json(const engine::CacheReport& report, const Model& model, CacheReports how);

/// A line in the debug log: always with the texts, the log is the operator's.
void log_cache_report(engine::RequestId id, const engine::CacheReport& report, const Model& model);

}  // namespace coppice::server
