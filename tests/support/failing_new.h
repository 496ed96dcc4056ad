// Memory that runs out at the n-th allocation, for once or for a while; or now and then, on all threads. Whoever links
// failing_new.cpp gets its operator new. The former on one thread at a time.
#pragma once

#include <cstdint>

namespace coppice::testing {

/// Of the allocations made under a Counting, number `n`, from 1, will throw std::bad_alloc, and the `more` after it; n
/// = 0: none will. Counts anew.
void fail_allocation(std::int64_t n, std::int64_t more = 0);
/// Did it come to that?
bool allocation_failed();

/// While one of these is in scope allocations count; while a NotCounting is in the innermost scope they don't.
class Counting {
 public:
  explicit Counting(bool on = true);
  ~Counting();
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

 private:
  bool before_;
};
struct NotCounting : Counting {
  NotCounting() : Counting(false) {}
};

/// From now on one in so many allocations fails, drawn by `seed`, on every thread where no Spared is in scope; 0: none.
void fail_some_allocations(std::uint32_t one_in, std::uint64_t seed = 0);
/// How many have failed by that.
std::uint64_t failed_allocations();

class Spared {
 public:
  Spared();
  ~Spared();
  Spared(const Spared&) = delete;
  Spared& operator=(const Spared&) = delete;

 private:
  bool before_;
};

}  // namespace coppice::testing
