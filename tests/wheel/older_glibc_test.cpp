// What the wheel's program has in place of functions that glibc 2.28 lacks: here on a glibc that has them. Where they
// are used is seen in a bare Debian 11 (test_wheel.py), which has the one for waits and lacks the one for exceptions.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>

extern "C" {
int coppice_wait_by_day(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until);
int coppice_find_by_headers(void* address, dl_find_object* found);
}

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

timespec after(milliseconds time) {
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const auto nanoseconds = until.tv_nsec + std::chrono::nanoseconds(time).count();
  until.tv_sec += nanoseconds / 1000000000;
  until.tv_nsec = nanoseconds % 1000000000;
  return until;
}

class OlderGlibcTest : public testing::Test {
 protected:
  OlderGlibcTest() { pthread_mutex_lock(&mutex_); }
  ~OlderGlibcTest() override { pthread_mutex_unlock(&mutex_); }

  int wait(timespec until) { return coppice_wait_by_day(&condition_, &mutex_, CLOCK_MONOTONIC, &until); }

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

TEST_F(OlderGlibcTest, WaitsUntilASteadyTime) {
  for (const milliseconds time : {milliseconds(30), milliseconds(1100)}) {
    const auto start = steady_clock::now();
    EXPECT_EQ(wait(after(time)), ETIMEDOUT);
    EXPECT_GE(steady_clock::now() - start, time - milliseconds(5));  // the clock of the day may be slewed
  }
}

TEST_F(OlderGlibcTest, WaitsNotForTheLongPast) {
  EXPECT_EQ(wait({0, 1}), ETIMEDOUT);
  EXPECT_EQ(wait({0, 0}), ETIMEDOUT);
}

TEST_F(OlderGlibcTest, RefusesTimesThatAreNone) {
  EXPECT_EQ(wait({1, 1000000000}), EINVAL);
  EXPECT_EQ(wait({1, -1}), EINVAL);
}

TEST_F(OlderGlibcTest, WakesWhenNotified) {
  bool told = false;
  std::thread other([&] {
    pthread_mutex_lock(&mutex_);
    told = true;
    pthread_cond_signal(&condition_);
    pthread_mutex_unlock(&mutex_);
  });
  int status = 0;
  while (!told && status == 0) status = wait(after(milliseconds(60000)));
  EXPECT_EQ(status, 0);
  other.join();
}

TEST(OlderGlibcUnwindTest, FindsWhatGlibcFinds) {
  const auto find = reinterpret_cast<int (*)(void*, dl_find_object*)>(dlsym(RTLD_DEFAULT, "_dl_find_object"));
  if (find == nullptr) GTEST_SKIP() << "this C library has none";
  // In this program, libstdc++ and libc.
  for (void* address :
       {reinterpret_cast<void*>(&after), dlsym(RTLD_DEFAULT, "__cxa_throw"), dlsym(RTLD_DEFAULT, "printf")}) {
    ASSERT_NE(address, nullptr);
    dl_find_object theirs{};
    dl_find_object ours{};
    ASSERT_EQ(find(address, &theirs), 0);
    ASSERT_EQ(coppice_find_by_headers(address, &ours), 0);
    EXPECT_EQ(ours.dlfo_eh_frame, theirs.dlfo_eh_frame);
    EXPECT_LE(ours.dlfo_map_start, address);
    EXPECT_GT(ours.dlfo_map_end, address);
  }
}

TEST(OlderGlibcUnwindTest, FindsNothingOutsideOfCode) {
  dl_find_object found{};
  int on_stack = 0;
  EXPECT_EQ(coppice_find_by_headers(&on_stack, &found), -1);
  EXPECT_EQ(coppice_find_by_headers(nullptr, &found), -1);
}

}  // namespace
