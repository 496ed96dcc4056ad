#include "tier/disk/fibers.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace coppice::test {

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
  if (!back_.try_acquire_for(std::chrono::seconds(60))) {
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
