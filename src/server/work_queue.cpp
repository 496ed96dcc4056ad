#include "server/work_queue.h"

#include <bit>
#include <utility>

namespace coppice::server {

namespace {

constexpr std::size_t kSmall = 1024;  // bytes; what is smaller is of one size: it takes no time worth telling apart

}  // namespace

WorkQueue::Work::Work(std::size_t bytes, std::function<bool()> step)
    : step_(std::move(step)), size_(static_cast<std::size_t>(std::bit_width(bytes / kSmall))) {}

WorkQueue::WorkQueue(std::function<void()> begin)
    : thread_([this, begin = std::move(begin)] {
        begin();
        serve();
      }) {}

WorkQueue::~WorkQueue() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void WorkQueue::push(Work& work) noexcept {
  {
    const std::scoped_lock lock(mutex_);
    work.number_ = ++last_number_;
    lines_[work.size_].push_back(work);
    ++n_waiting_;
  }
  changed_.notify_one();
}

void WorkQueue::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return n_waiting_ > 0 || ending_; });
    if (n_waiting_ == 0) return;
    Work& work = take();
    lock.unlock();
    const bool done = work.step_();  // if so, it may be gone
    lock.lock();
    if (done) continue;
    lines_[work.size_].push_front(work);
    ++n_waiting_;
  }
}

/// REQUIRES: something waits.
WorkQueue::Work& WorkQueue::take() {
  Line* smallest = nullptr;
  Line* oldest = nullptr;  // a line's first is its oldest
  for (Line& line : lines_) {
    if (line.empty()) continue;
    if (smallest == nullptr) smallest = &line;
    if (oldest == nullptr || line.front().number_ < oldest->front().number_) oldest = &line;
  }
  Line& chosen = passes_ < kMostPasses ? *smallest : *oldest;
  passes_ = &chosen == oldest ? 0 : passes_ + 1;
  Work& work = chosen.front();
  chosen.pop_front();
  --n_waiting_;
  return work;
}

}  // namespace coppice::server
