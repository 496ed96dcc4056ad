#include "stopwatch.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <numeric>
#include <thread>

namespace coppice::bench {
namespace {

class SpinBarrier final : public Barrier {
 public:
  explicit SpinBarrier(int n) : n_(n) {}
  void wait() override {
    constexpr int kPatience = 1 << 14;  // then somebody else needs the core
    const int round = round_.load();
    if (arrived_.fetch_add(1) + 1 == n_) {
      arrived_ = 0;
      round_.fetch_add(1);
      return;
    }
    for (int i = 0; round_.load() == round; ++i) {
      if (i >= kPatience) sched_yield();
    }
  }

 private:
  int n_;
  std::atomic<int> arrived_ = 0, round_ = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double thread_cpu() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

void Samples::append(const Samples& more) {
  wall.insert(wall.end(), more.wall.begin(), more.wall.end());
  cpu.insert(cpu.end(), more.cpu.begin(), more.cpu.end());
}

double median(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

Samples time_step(int n_threads, int repetitions, const std::function<void(int, Barrier&)>& step) {
  SpinBarrier barrier(n_threads);
  std::vector<double> cpu_of_worker(static_cast<std::size_t>(n_threads));
  Samples samples;
  const auto work = [&](int worker) {
    for (int i = 0; i <= repetitions; ++i) {
      barrier.wait();
      const double start = now(), cpu_start = thread_cpu();
      step(worker, barrier);
      cpu_of_worker[static_cast<std::size_t>(worker)] = thread_cpu() - cpu_start;
      barrier.wait();
      if (worker != 0 || i == 0) continue;
      samples.wall.push_back(now() - start);
      samples.cpu.push_back(std::accumulate(cpu_of_worker.begin(), cpu_of_worker.end(), 0.0));
    }
  };
  std::vector<std::jthread> others;
  for (int worker = 1; worker < n_threads; ++worker) others.emplace_back(work, worker);
  work(0);
  others.clear();
  return samples;
}

}  // namespace coppice::bench
