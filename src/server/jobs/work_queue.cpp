#include "server/jobs/work_queue.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <utility>

#include "check/assert.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kSmall = 1024;  // bytes; smaller works count as one size: none of them takes long

}  // namespace

WorkQueue::WorkQueue(const std::function<void()>& begin, int n_workers) {
  COPPICE_ASSERT(n_workers > 0);
  for (int i = 0; i < n_workers; ++i)
    threads_.emplace_back([this, begin] {
      begin();
      serve();
    });
}

WorkQueue::~WorkQueue() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkQueue::push(const std::string& key, std::size_t bytes, Step step) {
  {
    const std::scoped_lock lock(mutex_);
    const auto size = static_cast<std::size_t>(std::bit_width(bytes / kSmall));
    Line& line = lines_[size];
    const auto [own, is_new] = line.rounds.try_emplace(key, line.round);
    if (!is_new) own->second = std::max(own->second + 1, line.round);
    const auto later = std::ranges::upper_bound(line.works, own->second, {}, &Work::round);
    line.works.insert(later, {std::move(step), size, ++last_number_, key, own->second});
    ++n_waiting_;
  }
  changed_.notify_one();
}

void WorkQueue::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return n_waiting_ > 0 || ending_; });
    if (n_waiting_ == 0) return;
    Works turn = take();
    lock.unlock();
    const bool done = turn.front().step();
    if (done) turn.front().step = nullptr;  // what it holds goes without the lock
    lock.lock();
    done ? forget(turn.front()) : put_back(std::move(turn));
  }
}

/// Whoever serves takes the next turn at once, so nobody needs to be woken.
void WorkQueue::put_back(Works turn) {
  Works& works = lines_[turn.front().line].works;
  const auto place_of = [](const Work& work) { return std::pair(work.round, work.number); };
  auto place = works.begin();
  while (place != works.end() && place_of(*place) < place_of(turn.front()))
    ++place;  // past works of other workers only
  works.splice(place, turn);
  ++n_waiting_;
}

/// A key without works begins anew.
void WorkQueue::forget(const Work& done) {
  auto& rounds = lines_[done.line].rounds;
  const auto last = rounds.find(done.key);
  if (last != rounds.end() && last->second == done.round) rounds.erase(last);
}

/// The work whose turn it is, alone. REQUIRES: something waits.
WorkQueue::Works WorkQueue::take() {
  COPPICE_ASSERT(n_waiting_ > 0);
  Line* smallest = nullptr;
  Line* oldest = nullptr;  // by its first
  for (Line& line : lines_) {
    if (line.works.empty()) continue;
    if (smallest == nullptr) smallest = &line;
    if (oldest == nullptr || line.works.front().number < oldest->works.front().number) oldest = &line;
  }
  Line& chosen = passes_ < kMostPasses ? *smallest : *oldest;
  passes_ = &chosen == oldest ? 0 : passes_ + 1;
  chosen.round = chosen.works.front().round;
  Works turn;
  turn.splice(turn.begin(), chosen.works, chosen.works.begin());
  --n_waiting_;
  return turn;
}

/// No co_spawn onto the worker: in Boost 1.81 it hands a cancellation to the other thread by a pointer that may dangle.
asio::awaitable<void> WorkQueue::run(const std::string& key, std::size_t bytes, std::function<bool()> step) {
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
  const auto io = asio::make_work_guard(co_await asio::this_coro::executor);
  const auto begin = [&](auto resume) {
    if (auto slot = asio::get_associated_cancellation_slot(resume); slot.is_connected())
      slot.assign([&cancelled](asio::cancellation_type) { cancelled = true; });  // cleared when the caller is resumed
    push(key, bytes, [&turn, executor = io.get_executor(), resume = std::move(resume)]() mutable {
      const bool done = turn();
      if (done) asio::post(executor, std::move(resume));
      return done;
    });
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(begin, asio::use_awaitable);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace coppice::server
