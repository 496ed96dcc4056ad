// Failures that go no further than the log. Nothing here throws: where memory is short, a line may be missing.
#pragma once

#include <spdlog/spdlog.h>

#include <exception>

namespace coppice::server {

inline void log_failure(const char* what, const std::exception& e) noexcept {
  try {
    SPDLOG_ERROR("{}: {}", what, e.what());
  } catch (...) {  // the logger's own: it tells of its failures in text, too
  }
}

/// A completion handler for coroutines that nobody waits for. `what` outlives the coroutine: a literal.
inline auto log_failure_of(const char* what) {
  return [what](const std::exception_ptr& failure) {
    if (!failure) return;
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& e) {
      log_failure(what, e);
    }
  };
}

}  // namespace coppice::server
