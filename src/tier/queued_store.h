// QueuedStore: what stores have in common that answer on threads of their own: questions, loads and writes wait in
// queues; pieces have other names outside, and are closed there, if there is a secret; and at the end all that waits is
// answered. Abstract.
//
// Thread-safe, as Store is. Who derives from it starts threads_, which end when take() gives nothing, and calls stop()
// in its destructor.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "check/mutex.h"
#include "tier/seal.h"
#include "tier/store.h"

namespace coppice::tier {

class QueuedStore : public Store {
 public:
  void find(std::vector<Name> names, Found done) final;
  void load(const Name& name, Buffer into, Loaded done) final;
  void stop(Clock::time_point until) override;
  std::vector<Counters> places() const final { return {counters()}; }
  virtual Counters counters() const = 0;

 protected:
  /// Steps of a nice value, for threads that write or tidy: as many as there are. Where all processors compute, a
  /// writer takes time from a step (docs/decisions.md, "Pieces are files").
  static constexpr int kWritersNicer = 19;

  struct Find {
    std::vector<Name> names;  ///< as they are asked for: to hash them takes a moment
    Found done;
  };
  struct Load {
    Name name;  ///< outside()
    Buffer into;
    Loaded done;
  };
  struct Write {
    Name name;  ///< outside()
    Buffer piece;
  };
  /// What waits for threads of one kind.
  template <class T>
  struct Queue {
    check::Condition changed;
    std::deque<T> waiting;
    void add(T one) {
      waiting.push_back(std::move(one));
      changed.notify_one();
    }
  };
  /// Which of the queues.
  template <class T>
  using In = Queue<T> QueuedStore::*;

  explicit QueuedStore(std::optional<Seal> seal) : seal_(seal) {}

  /// Waits for one, and takes those behind it, too, for which more() says so: it is told the queue, and how many are
  /// taken. None: all is over.
  template <class T, class More>
  std::vector<T> take(In<T> queue, const More& more);
  /// Answers one after the other until all is over.
  template <class T, class Answer>
  void work(In<T> queue, const Answer& answer);

  /// For a thread's whole work: begins it anew where there was no memory to go on. What was under way is not answered:
  /// who waits for it gives it up in time.
  template <class Work>
  static void again(const Work& work);

  /// What stop() begins with: nothing is given from now on.
  void begin_end(Clock::time_point until);
  /// It has begun.
  bool ends() const;
  /// ... and its time is over: nothing is written any more.
  bool is_late() const;

  Name outside(const Name& name) const { return seal_ ? seal_->outside(name) : name; }
  Which outside(const Which& which) const { return seal_ ? seal_->outside(which) : which; }
  /// Bytes that a piece has outside.
  std::size_t size_outside(const Buffer& piece) const { return piece.size() + (seal_ ? Seal::kBytes : 0); }
  /// Makes a piece what it is outside. False: there is no room for that, or the library refuses.
  bool close(Write& write) const;
  bool seals() const { return seal_.has_value(); }
  /// Seal::open_head(). REQUIRES: seals().
  bool unseal_head(const Name& name, std::span<std::byte> head, std::span<const std::byte> end) const {
    return seal_->open_head(name, head, end);
  }
  /// Opens what was read (size() == 0: nothing was), and gives it to who asked. False: it is not what its name says.
  bool give(Load load) const;

  mutable check::Mutex mutex_;
  Queue<Find> finds_ COPPICE_GUARDED_BY(mutex_);
  Queue<Load> loads_ COPPICE_GUARDED_BY(mutex_);
  Queue<Write> writes_ COPPICE_GUARDED_BY(mutex_);
  check::Condition keeper_;  ///< of who looks after the store; told when there is something to do, and at the end
  std::optional<Clock::time_point> ends_ COPPICE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;

 private:
  const std::optional<Seal> seal_;
};

template <class T, class More>
std::vector<T> QueuedStore::take(In<T> queue_of, const More& more) {
  check::Lock lock(mutex_);
  Queue<T>& queue = this->*queue_of;
  while (queue.waiting.empty() && !ends_) queue.changed.wait(lock);
  std::vector<T> taken;
  while (!queue.waiting.empty() && (taken.empty() || more(queue.waiting, taken.size()))) {
    taken.push_back(std::move(queue.waiting.front()));
    queue.waiting.pop_front();
  }
  return taken;
}

template <class T, class Answer>
void QueuedStore::work(In<T> queue, const Answer& answer) {
  const auto one = [](const std::deque<T>&, std::size_t) { return false; };
  for (auto taken = take(queue, one); !taken.empty(); taken = take(queue, one)) answer(std::move(taken.front()));
}

template <class Work>
void QueuedStore::again(const Work& work) {
  constexpr std::chrono::milliseconds kPause{10};
  for (;;) {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace coppice::tier
