// Work on the worker's thread that a coroutine of the io thread waits for.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <functional>

#include "server/jobs/work_queue.h"

namespace coppice::server {

/// Runs `step` on the worker, once a turn, until it returns true or throws; throws what it throws. If the waiting coroutine is
/// cancelled, no further turn begins, and system_error (operation_aborted) is thrown. `bytes`: of the body that it is about.
///
/// The caller's frame stays until the last turn is over, cancelled or not, so `step` may refer to it.
boost::asio::awaitable<void> on_worker(WorkQueue& worker, std::size_t bytes, std::function<bool()> step);

}  // namespace coppice::server
