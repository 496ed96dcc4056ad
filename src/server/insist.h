// insist: does what must not be left undone for want of memory: tries until there is some.
#pragma once

#include <chrono>
#include <new>
#include <thread>

namespace coppice::server {

/// REQUIRES: f changes nothing when it throws std::bad_alloc, and throws nothing else.
template <typename F>
void insist(F f) noexcept {
  while (true) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // other requests fail meanwhile, and give theirs back
    }
  }
}

}  // namespace coppice::server
