#include "server/jobs/work_queue.h"

#include <bit>
#include <utility>

namespace coppice::server {

namespace {

constexpr std::size_t kSmall = 1024;  // bytes; smaller works count as one size: none of them takes long

}  // namespace

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

void WorkQueue::push(std::size_t bytes, Step step) {
  {
    const std::scoped_lock lock(mutex_);
    const auto line = static_cast<std::size_t>(std::bit_width(bytes / kSmall));
    lines_[line].push_back({std::move(step), line, ++last_number_});
    ++n_waiting_;
  }
  changed_.notify_one();
}

void WorkQueue::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return n_waiting_ > 0 || ending_; });
    if (n_waiting_ == 0) return;
    Line turn = take();
    lock.unlock();
    const bool done = turn.front().step();
    if (done) turn.clear();  // what the step holds goes without the lock
    lock.lock();
    if (done) continue;
    Line& line = lines_[turn.front().line];
    line.splice(line.begin(), turn);
    ++n_waiting_;
  }
}

/// The work whose turn it is, alone. REQUIRES: something waits.
WorkQueue::Line WorkQueue::take() {
  Line* smallest = nullptr;
  Line* oldest = nullptr;  // a line's first is its oldest
  for (Line& line : lines_) {
    if (line.empty()) continue;
    if (smallest == nullptr) smallest = &line;
    if (oldest == nullptr || line.front().number < oldest->front().number) oldest = &line;
  }
  Line& chosen = passes_ < kMostPasses ? *smallest : *oldest;
  passes_ = &chosen == oldest ? 0 : passes_ + 1;
  Line turn;
  turn.splice(turn.begin(), chosen, chosen.begin());
  --n_waiting_;
  return turn;
}

}  // namespace coppice::server
