#include "tier/disk/fibers.h"

#include <sched.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>

namespace coppice::test {
namespace {

void must_succeed(bool done) {
  if (done) return;
  std::perror("fibers");
  std::abort();
}

}  // namespace

Fibers::Semaphore::Semaphore() {
  must_succeed(sem_init(&semaphore_, 0, 0) == 0);
}

void Fibers::Semaphore::release() {
  must_succeed(sem_post(&semaphore_) == 0);
}

void Fibers::Semaphore::acquire() {
  while (sem_wait(&semaphore_) != 0) must_succeed(errno == EINTR);
}

bool Fibers::Semaphore::acquire_within(int seconds) {
  timespec end{};
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += seconds;
  while (sem_timedwait(&semaphore_, &end) != 0) {
    if (errno == ETIMEDOUT) return false;
    must_succeed(errno == EINTR);
  }
  return true;
}

Fibers::Fibers() {
  const int here = sched_getcpu();
  must_succeed(here >= 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(here), &one);
  must_succeed(sched_setaffinity(0, sizeof one, &one) == 0);
}

Fibers::~Fibers() {
  for (const auto& fiber : fibers_) fiber->thread.join();
}

void Fibers::start(std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->body = std::move(body);
  fiber->thread = std::thread([this, me = fiber.get()] {
    me->go.acquire();
    me->body();
    me->ended = true;
    back_.release();
  });
  fibers_.push_back(std::move(fiber));
}

bool Fibers::step(Dice& dice) {
  if (fibers_.empty()) return false;
  const auto chosen = fibers_.begin() + dice.below(static_cast<std::int64_t>(fibers_.size()));
  running_ = chosen->get();
  running_->go.release();
  if (!back_.acquire_within(60)) {
    std::fputs("A fiber doesn't give way: a lock is held over a system call.\n", stderr);
    std::abort();
  }
  if (running_->ended) {
    running_->thread.join();
    fibers_.erase(chosen);
  }
  running_ = nullptr;
  return true;
}

void Fibers::give_way() {
  Fiber* const me = running_;
  if (me == nullptr) return;
  back_.release();
  me->go.acquire();
}

}  // namespace coppice::test
