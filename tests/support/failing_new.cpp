#include "support/failing_new.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

namespace coppice::testing {

namespace {
thread_local bool counting = false;
thread_local std::int64_t made = 0, first_failure = 0, last_failure = 0;
thread_local bool has_failed = false;

thread_local bool spared = false;
std::atomic<std::uint32_t> fails_one_in = 0;
std::atomic<std::uint64_t> drawn = 0, n_failed = 0;
}  // namespace

void fail_allocation(std::int64_t n, std::int64_t more) {
  made = 0;
  first_failure = n;
  last_failure = n + more;
  has_failed = false;
}

bool allocation_failed() {
  return has_failed;
}

Counting::Counting(bool on) : before_(counting) {
  counting = on;
}
Counting::~Counting() {
  counting = before_;
}

void fail_some_allocations(std::uint32_t one_in, std::uint64_t seed) {
  drawn = seed;
  fails_one_in = one_in;
}

std::uint64_t failed_allocations() {
  return n_failed;
}

Spared::Spared() : before_(std::exchange(spared, true)) {}
Spared::~Spared() {
  spared = before_;
}

/// SplitMix64.
static bool is_drawn(std::uint32_t one_in) {
  std::uint64_t z = drawn += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return (z ^ z >> 31) % one_in == 0;
}

static bool fails_now() {
  if (const std::uint32_t one_in = spared ? 0 : fails_one_in.load(); one_in > 0 && is_drawn(one_in)) {
    ++n_failed;
    return true;
  }
  if (!counting || first_failure == 0) return false;
  if (++made < first_failure || made > last_failure) return false;
  has_failed = true;
  return true;
}

static void* allocate(std::size_t size) {
  if (fails_now()) throw std::bad_alloc();
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace coppice::testing

void* operator new(std::size_t size) {
  return coppice::testing::allocate(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
