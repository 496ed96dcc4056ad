// Memory that runs out at the n-th allocation of a thread, also of C's. Whoever links failing_malloc.cpp gets its
// malloc(), where the C library lets it: glibc, without sanitizers.
#pragma once

#include <cstdint>

namespace coppice::testing {

bool malloc_can_fail();

/// While it lives, number `n`, from 1, of this thread's allocations finds no memory; 0: all do. One at a time.
class FailingMalloc {
 public:
  explicit FailingMalloc(std::int64_t n);
  ~FailingMalloc();
  FailingMalloc(const FailingMalloc&) = delete;
  FailingMalloc& operator=(const FailingMalloc&) = delete;

  /// It came to that.
  static bool failed();
  /// What is left of the last one's `n`.
  static std::int64_t left();
};

}  // namespace coppice::testing
