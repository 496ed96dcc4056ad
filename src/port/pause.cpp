#include "port/pause.h"

#include <algorithm>

namespace coppice::port {

namespace {

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield" ::: "memory");
#else
  __asm__ volatile("" ::: "memory");
#endif
}

}  // namespace

int pauses_in(std::chrono::nanoseconds time) {
  using Clock = std::chrono::steady_clock;
  constexpr int kTries = 8, kPauses = 100;
  auto least = Clock::duration::max();  // of the tries that nothing came between
  for (int i = 0; i < kTries; ++i) {
    const auto start = Clock::now();
    for (int j = 0; j < kPauses; ++j) pause();
    least = std::min(least, Clock::now() - start);
  }
  const std::chrono::duration<double, std::nano> each = least;
  return std::max(1, static_cast<int>(static_cast<double>(time.count()) * kPauses / std::max(each.count(), 1.0)));
}

}  // namespace coppice::port
