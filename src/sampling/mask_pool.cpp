#include "sampling/mask_pool.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "grammar/work.h"

namespace coppice::sampling {

namespace {

/// Until works that are held back are looked at again: many steps are no shorter.
constexpr std::chrono::milliseconds kLook{10};

}  // namespace

bool MaskWork::claim() {
  Progress fresh = kNew;
  return progress_.compare_exchange_strong(fresh, kBegun);
}

bool MaskWork::try_run() {
  if (!claim()) return false;
  work_();
  work_ = nullptr;
  progress_ = kDone;
  progress_.notify_all();
  return true;
}

void MaskWork::wait() {
  if (try_run()) return;
  while (progress_ != kDone) progress_.wait(kBegun);
}

void MaskWork::give_up() {
  if (!claim()) return;
  work_ = nullptr;
  progress_ = kDone;
}

MaskPool::MaskPool(std::function<void()> done, std::function<bool()> shared, double little)
    : done_(std::move(done)), shared_(std::move(shared)), little_(little) {
  for (const bool only_quick : {true, false}) threads_.emplace_back([this, only_quick] { serve(only_quick); });
}

void MaskPool::close() {
  {
    const check::Lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void MaskPool::push(const std::string& key, bool quick, std::shared_ptr<MaskWork> work) {
  {
    const check::Lock lock(mutex_);
    if (closed_) return;
    Key& own = keys_[key];
    (quick ? own.quick : own.slow).push_back(std::move(work));
  }
  changed_.notify_all();
}

double MaskPool::Key::lately(Clock::time_point now) const {
  return spent * std::exp2(-std::chrono::duration<double>(now - at).count());
}

std::pair<MaskPool::Key*, MaskPool::Works*> MaskPool::next(bool only_quick, Clock::time_point now) {
  std::pair<Key*, Works*> next;
  std::pair<double, std::uint64_t> least;
  std::optional<bool> shared;  // it takes a moment to find out
  held_back_ = false;
  for (auto& [name, key] : keys_) {
    const double lately = key.lately(now);
    // What it takes now isn't known yet.
    const bool all_are_quick = lately < little_ && key.running == 0;
    Works* works = nullptr;
    if (!key.quick.empty()) {
      works = &key.quick;
    } else if (!key.slow.empty() && (!only_quick || all_are_quick)) {
      works = &key.slow;
    }
    if (works == &key.slow && lately >= kMuchSeconds) {
      if (!shared) shared = shared_();
      held_back_ |= *shared;
      if (*shared) works = nullptr;
    }
    const std::pair rank(lately, key.served);
    if (works != nullptr && (next.first == nullptr || rank < least)) {
      next = {&key, works};
      least = rank;
    }
  }
  return next;
}

void MaskPool::forget(Clock::time_point now) {
  std::erase_if(keys_, [&](const auto& entry) {
    const Key& key = entry.second;
    return key.quick.empty() && key.slow.empty() && key.running == 0 && key.lately(now) < kQuickSeconds;
  });
}

void MaskPool::serve(bool only_quick) {
  check::Lock lock(mutex_);
  while (!closed_) {
    const auto [key, works] = next(only_quick, Clock::now());
    if (key == nullptr) {
      held_back_ ? static_cast<void>(changed_.wait_until(lock, Clock::now() + kLook)) : changed_.wait(lock);
      continue;
    }
    std::shared_ptr<MaskWork> work = std::move(works->front());
    works->pop_front();
    key->served = ++served_;
    ++key->running;  // so it isn't forgotten
    lock.unlock();
    const double start = grammar::cpu_seconds();
    if (work->try_run()) done_();
    work.reset();  // it may be the last to hold a grammar
    const double seconds = grammar::cpu_seconds() - start;
    lock.lock();
    const auto now = Clock::now();
    key->spent = key->lately(now) + seconds;
    key->at = now;
    --key->running;
    if (!key->slow.empty()) changed_.notify_all();  // perhaps for the other thread, now that it is known
    forget(now);                                    // the key, too
  }
}

}  // namespace coppice::sampling
