#include "support/failing_new.h"

#include <cstdlib>
#include <new>

namespace coppice::testing {

namespace {
thread_local bool counting = false;
thread_local std::int64_t made = 0, first_failure = 0, last_failure = 0;
thread_local bool has_failed = false;
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

static bool fails_now() {
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
