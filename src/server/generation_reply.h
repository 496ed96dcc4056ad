// The reply to a generation: waits for a job's news and writes them, at once or as a stream.
//
// Runs on the io thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>

#include "engine/request.h"
#include "server/cache_report.h"
#include "server/http.h"
#include "server/job.h"
#include "server/metrics.h"
#include "server/model.h"
#include "server/prepare.h"

namespace coppice::server {

/// When the request came, who wants to know how long it took, and how long a stream may be silent.
struct ReplyClock {
  engine::Clock::time_point start;
  Metrics& metrics;
  engine::Clock::duration ping = engine::Clock::duration::max();
};

/// How cache reports become text.
struct CacheReporting {
  const Model& model;
  CacheReports how = CacheReports::kText;
};

/// A whole answer of more than `max_answer_bytes` of JSON ends as an error; a stream may be of any length. `prepared` is
/// used up.
///
/// Throws ApiError: before the first token there is still a status to set, so a stream's head waits for it, but no longer
/// than `clock.ping`. After that much silence, and again, a comment keeps the client and all between from giving up.
/// Throws boost::system::system_error when the client is gone or reads too slowly.
boost::asio::awaitable<void> reply_with(Job& job, Prepared& prepared, CacheReporting reporting, ReplyClock clock,
                                        std::size_t max_answer_bytes, ReplyWriter& out);

}  // namespace coppice::server
