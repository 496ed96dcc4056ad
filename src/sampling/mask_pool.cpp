#include "sampling/mask_pool.h"

#include <utility>

namespace coppice::sampling {

bool MaskWork::claim() {
  State fresh = kNew;
  return state_.compare_exchange_strong(fresh, kBegun);
}

bool MaskWork::try_run() {
  if (!claim()) return false;
  work_();
  work_ = nullptr;
  state_ = kDone;
  state_.notify_all();
  return true;
}

void MaskWork::wait() {
  if (try_run()) return;
  while (state_ != kDone) state_.wait(kBegun);
}

void MaskWork::give_up() {
  if (!claim()) return;
  work_ = nullptr;
  state_ = kDone;
}

MaskPool::MaskPool(std::function<void()> done, const std::function<void()>& begin) : done_(std::move(done)) {
  for (const Kind last : {kQuick, kSlow}) {
    threads_.emplace_back([this, begin, last] {
      begin();
      serve(last);
    });
  }
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
    Line& line = lines_.at(quick ? kQuick : kSlow);
    Works& works = line.works[key];
    if (works.empty()) line.turns.push_back(key);
    works.push_back(std::move(work));
  }
  changed_.notify_all();
}

/// Null: nothing waits.
std::shared_ptr<MaskWork> MaskPool::take(Kind last) {
  for (Line& line : lines_) {
    if (!line.turns.empty()) {
      const auto at = line.works.find(line.turns.front());
      std::shared_ptr<MaskWork> work = std::move(at->second.front());
      at->second.pop_front();
      if (at->second.empty()) {
        line.works.erase(at);
        line.turns.pop_front();
      } else {
        line.turns.splice(line.turns.end(), line.turns, line.turns.begin());
      }
      return work;
    }
    if (&line == &lines_.at(last)) break;
  }
  return nullptr;
}

void MaskPool::serve(Kind last) {
  check::Lock lock(mutex_);
  while (!closed_) {
    std::shared_ptr<MaskWork> work = take(last);
    if (!work) {
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    if (work->try_run()) done_();
    work.reset();  // it may be the last to hold a grammar
    lock.lock();
  }
}

}  // namespace coppice::sampling
