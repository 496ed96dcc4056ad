#include "server/jobs/work_queue.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <utility>

#include "check/assert.h"
#include "port/turn.h"
#include "server/jobs/sure_post.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kSmall = 1024;  // bytes; smaller works count as one size: none of them takes long

}  // namespace

/// A worker's thread, and the turn that is under way there.
class WorkQueue::OnThread final : public port::Turn {
 public:
  explicit OnThread(WorkQueue& queue) : queue_(queue) { port::set_turn(this); }
  ~OnThread() override { port::set_turn(nullptr); }
  OnThread(const OnThread&) = delete;
  OnThread& operator=(const OnThread&) = delete;

  void between_steps() noexcept override {
    if (turn != nullptr && Clock::now() - turn->begin >= kTurn) queue_.pause(*this, *turn);
  }

  bool unwanted() const noexcept override {
    const std::atomic<bool>* flag = turn == nullptr ? nullptr : turn->work.front().unwanted;
    return flag != nullptr && *flag;
  }

  TurnOf* turn = nullptr;
  check::Condition goes_on;
  bool may_go_on = false;

 private:
  WorkQueue& queue_;
};

WorkQueue::WorkQueue(std::function<void()> begin, int n_workers, int most_paused)
    : begin_(std::move(begin)), n_workers_(n_workers), most_paused_(most_paused) {
  COPPICE_ASSERT(n_workers > 0);
  start();
}

void WorkQueue::start() {
  const check::Lock lock(mutex_);
  for (int i = 0; i < n_workers_; ++i) add_thread();
}

WorkQueue::~WorkQueue() {
  for (std::thread& thread : finish()) thread.join();
}

/// Waits until all is done. From then on there are no new threads.
std::vector<std::thread> WorkQueue::finish() {
  check::Lock lock(mutex_);
  ending_ = true;
  while (n_open_ > 0) done_.wait(lock);
  changed_.notify_all();
  return std::move(threads_);
}

/// Throws std::system_error if the system has no more.
void WorkQueue::add_thread() {
  threads_.emplace_back([this] {
    begin_();
    serve();
  });
}

void WorkQueue::push(const std::string& key, std::size_t bytes, Step step, const std::atomic<bool>* unwanted) {
  Works work(1);  // without memory for more it goes without the lock
  work.front() = {.step = std::move(step),
                  .size = static_cast<std::size_t>(std::bit_width(bytes / kSmall)),
                  .number = 0,
                  .unwanted = unwanted};
  {
    const check::Lock lock(mutex_);
    const auto [owner, fresh] = keys_.try_emplace(key);
    work.front().number = ++last_number_;
    if (fresh) {
      owner->second.used = reached_;
      owner->second.since = last_number_;
    }
    ++owner->second.n_open;
    ++n_open_;
    put_back({.key = owner, .work = std::move(work), .begin = {}});
  }
  changed_.notify_one();
}

void WorkQueue::serve() {
  OnThread self(*this);
  check::Lock lock(mutex_);
  while (true) {
    while (!may_begin() && !(ending_ && n_open_ == 0)) changed_.wait(lock);
    if (!may_begin()) return;
    TurnOf turn = take();
    count_busy(turn, 1);
    if (OnThread* other = std::exchange(turn.work.front().paused_on, nullptr)) {
      *other->turn = std::move(turn);
      other->may_go_on = true;
      other->goes_on.notify_one();
      continue;
    }
    self.turn = &turn;
    lock.unlock();
    const bool done = turn.work.front().step();
    self.turn = nullptr;
    if (done) turn.work.front().step = nullptr;  // what it holds goes without the lock
    lock.lock();
    count_busy(turn, -1);
    charge(turn);
    done ? end(turn.key) : put_back(std::move(turn));
  }
}

/// In the middle of a turn. It goes on at once if nobody is before it, or there are too many that pause.
void WorkQueue::pause(OnThread& thread, TurnOf& turn) {
  check::Lock lock(mutex_);
  charge(turn);
  if (n_waiting_ == 0 || paused_ == most_paused_) return;
  count_busy(turn, -1);
  const auto next = next_key();
  bool waits = next == turn.key || (next != keys_.end() && next->second.place() < turn.key->second.place());
  try {
    if (waits && std::ssize(threads_) < n_workers_ + paused_ + 1) add_thread();
  } catch (const std::exception&) {  // no more threads, or memory for one
    waits = false;
  }
  if (!waits) return count_busy(turn, 1);
  ++paused_;
  turn.work.front().paused_on = &thread;
  put_back(std::move(turn));
  changed_.notify_one();
  while (!std::exchange(thread.may_go_on, false)) thread.goes_on.wait(lock);
  --paused_;
}

/// The turn counts as far as it has come.
void WorkQueue::charge(TurnOf& turn) {
  const auto now = Clock::now();
  Key& key = turn.key->second;
  key.used += std::max<Clock::duration>(now - turn.begin, kLeast);
  key.since = ++last_number_;
  turn.begin = now;
}

/// To its place. Takes no memory. Whoever serves takes the next turn at once, so nobody needs to be woken.
void WorkQueue::put_back(TurnOf&& turn) {
  Key& key = turn.key->second;
  Works& line = key.lines[turn.work.front().size];
  line.splice(std::ranges::upper_bound(line, turn.work.front().number, {}, &Work::number), turn.work);
  ++key.n_waiting;
  ++n_waiting_;
}

/// A key without works begins anew.
void WorkQueue::end(Keys::iterator key) {
  if (--key->second.n_open == 0) keys_.erase(key);
  if (--n_open_ == 0) done_.notify_all();
}

/// The work of this flag, if it waits for a turn; else nothing. What it holds is the caller's to let go.
WorkQueue::Works WorkQueue::withdraw(const std::string& key, const std::atomic<bool>* unwanted) {
  Works work;
  const check::Lock lock(mutex_);
  const auto owner = keys_.find(key);
  if (owner == keys_.end()) return work;
  for (Works& line : owner->second.lines) {
    const auto it = std::ranges::find_if(
        line, [&](const Work& waiting) { return waiting.unwanted == unwanted && waiting.paused_on == nullptr; });
    if (it == line.end()) continue;
    work.splice(work.begin(), line, it);
    --owner->second.n_waiting;
    --n_waiting_;
    end(owner);
    break;
  }
  return work;
}

void WorkQueue::count_busy(const TurnOf& turn, int more) {
  busy_ += more;
  turn.key->second.busy += more;
}

/// The end: none that may begin a turn.
WorkQueue::Keys::iterator WorkQueue::next_key() {
  auto next = keys_.end();
  for (auto it = keys_.begin(); it != keys_.end(); ++it) {
    const auto& [name, key] = *it;
    const bool leaves_one = name.empty() || n_workers_ == 1 || key.busy < n_workers_ - 1;
    if (key.n_waiting > 0 && leaves_one && (next == keys_.end() || key.place() < next->second.place())) next = it;
  }
  return next;
}

/// The work whose turn it is. REQUIRES: may_begin().
WorkQueue::TurnOf WorkQueue::take() {
  TurnOf turn{.key = next_key(), .work = {}, .begin = Clock::now()};
  COPPICE_ASSERT(turn.key != keys_.end());
  Key& key = turn.key->second;
  reached_ = key.used;
  Works* smallest = nullptr;
  Works* oldest = nullptr;  // by its first
  for (Works& line : key.lines) {
    if (line.empty()) continue;
    if (smallest == nullptr) smallest = &line;
    if (oldest == nullptr || line.front().number < oldest->front().number) oldest = &line;
  }
  Works& chosen = key.passes < kMostPasses ? *smallest : *oldest;
  key.passes = &chosen == oldest ? 0 : key.passes + 1;
  turn.work.splice(turn.work.begin(), chosen, chosen.begin());
  --key.n_waiting;
  --n_waiting_;
  return turn;
}

/// No co_spawn onto the worker: in Boost 1.81 it hands a cancellation to the other thread by a pointer that may dangle.
asio::awaitable<void> WorkQueue::run(std::string key, std::size_t bytes, std::function<bool()> step) {
  std::exception_ptr failure;
  std::atomic<bool> cancelled = false;
  const auto turn = [&] {
    try {
      if (cancelled) throw boost::system::system_error(asio::error::operation_aborted);
      return step();
    } catch (...) {
      failure = std::current_exception();
      return true;
    }
  };
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto* const of_io = executor.target<asio::io_context::executor_type>();
  COPPICE_ASSERT(of_io != nullptr);
  const auto io = asio::make_work_guard(*of_io);
  SurePost post;  // the worker must not fail, and the caller is to be told
  const auto begin = [&](auto resume) {
    auto slot = asio::get_associated_cancellation_slot(resume);
    if (slot.is_connected()) {
      slot.assign([this, &key, &cancelled](asio::cancellation_type) {  // cleared when the caller is resumed
        cancelled = true;
        for (Work& waiting : withdraw(key, &cancelled)) waiting.step();  // which sees that, and tells the caller
      });
    }
    try {
      Step one = [&turn, &post, &context = io.get_executor().context(), resume = std::move(resume)]() mutable {
        const bool done = turn();
        if (done) post(context, [resume = std::move(resume)]() mutable { std::move(resume)(); });
        return done;
      };
      push(key, bytes, std::move(one), &cancelled);
    } catch (...) {  // no memory: `resume` is gone, and soon this frame is, too
      if (slot.is_connected()) slot.clear();
      throw;
    }
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(begin, asio::use_awaitable);
  if (failure && cancelled) throw boost::system::system_error(asio::error::operation_aborted);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace coppice::server
