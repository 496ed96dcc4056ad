// For co_spawn: what a coroutine of the server throws that nobody waits for. It leaves the loop of the io thread as a
// ServerFailure, which ends the process: it must not be lost, nor be taken for a connection's. Want of memory costs
// only that coroutine.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>

namespace coppice::server {

struct ServerFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr auto kRethrow = [](const std::exception_ptr& failure) {
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw ServerFailure(error.what());
  }
};

}  // namespace coppice::server
