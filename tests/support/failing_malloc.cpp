#include "support/failing_malloc.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "support/sanitized.h"

#if defined(__GLIBC__) && !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define COPPICE_MALLOC_CAN_FAIL 1
#else
#define COPPICE_MALLOC_CAN_FAIL 0
#endif

namespace coppice::testing {

namespace {
thread_local bool counts = false;
thread_local std::int64_t n_left = 0;  ///< until one fails; 0: none will
thread_local bool has_failed = false;
}  // namespace

bool malloc_can_fail() {
  return COPPICE_MALLOC_CAN_FAIL != 0;
}

FailingMalloc::FailingMalloc(std::int64_t n) {
  has_failed = false;
  n_left = n;
  counts = true;
}
FailingMalloc::~FailingMalloc() {
  counts = false;
}
bool FailingMalloc::failed() {
  return has_failed;
}
std::int64_t FailingMalloc::left() {
  return n_left;
}

#if COPPICE_MALLOC_CAN_FAIL
static bool fails_now() {
  if (!counts || n_left == 0 || --n_left > 0) return false;
  has_failed = true;
  errno = ENOMEM;
  return true;
}
#endif

}  // namespace coppice::testing

#if COPPICE_MALLOC_CAN_FAIL
extern "C" {
void* __libc_malloc(std::size_t size);                           // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(std::size_t n, std::size_t size);            // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* old, std::size_t size);               // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT(bugprone-reserved-identifier)

void* malloc(std::size_t size) {
  return coppice::testing::fails_now() ? nullptr : __libc_malloc(size);
}
void* calloc(std::size_t n, std::size_t size) {
  return coppice::testing::fails_now() ? nullptr : __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t size) {
  return coppice::testing::fails_now() ? nullptr : __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return coppice::testing::fails_now() ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  *memory = coppice::testing::fails_now() ? nullptr : __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif
