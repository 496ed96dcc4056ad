// log_failure: a completion handler for coroutines that nobody waits for: their exceptions must not vanish.
#pragma once

#include <spdlog/spdlog.h>

#include <exception>

namespace coppice::server {

/// `what` outlives the coroutine: a literal.
inline auto log_failure(const char* what) {
  return [what](const std::exception_ptr& failure) {
    if (!failure) return;
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& e) {
      SPDLOG_ERROR("{}: {}", what, e.what());
    }
  };
}

}  // namespace coppice::server
