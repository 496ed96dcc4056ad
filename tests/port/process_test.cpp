#include "port/process.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <cstddef>

namespace coppice::port {
namespace {

// With a limit that is high enough, or none, it left threads with what the C library gives them.
TEST(Process, ThreadsGetTheirStackUnderAHighLimit) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_STACK, &limit), 0);
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < kBytes) GTEST_SKIP() << "the stack's limit is low here";
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_STACK, &limit), 0);

  ensure_stack(kBytes);
  std::size_t stack = 0;
  pthread_attr_t threads;
  ASSERT_EQ(pthread_getattr_default_np(&threads), 0);
  EXPECT_EQ(pthread_attr_getstacksize(&threads, &stack), 0);
  EXPECT_GE(stack, kBytes);
  pthread_attr_destroy(&threads);
  setrlimit(RLIMIT_STACK, &before);
}

}  // namespace
}  // namespace coppice::port
