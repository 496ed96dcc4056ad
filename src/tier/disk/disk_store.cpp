#include "tier/disk/disk_store.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "port/process.h"
#include "tier/piece.h"

namespace coppice::tier {

namespace {

constexpr std::chrono::seconds kTidyEvery{1}, kOpenEvery{5};
constexpr int kNicer = 10;

}  // namespace

DiskStore::DiskStore(std::unique_ptr<FileSystem> files, const DiskLimits& limits, Threads threads, DiskFolder::Say say,
                     std::optional<Seal> seal)
    : files_(std::move(files)), say_(std::move(say)), seal_(seal), folder_(*files_, limits, say_) {
  threads_.emplace_back([this] { keep(); });
  threads_.emplace_back([this] { work(&DiskStore::finds_, [this](Find find) { answer(std::move(find)); }); });
  for (int i = 0; i < threads.readers; ++i)
    threads_.emplace_back([this] { work(&DiskStore::loads_, [this](Load load) { answer(std::move(load)); }); });
  for (int i = 0; i < threads.writers; ++i) {
    threads_.emplace_back([this, i] {
      port::make_thread_nicer(kNicer);
      work(&DiskStore::writes_, [this, i](Write write) { answer(std::move(write), i); });
    });
  }
}

DiskStore::~DiskStore() {
  stop(Clock::now());
}

template <class T, class Work>
void DiskStore::work(Queue<T> DiskStore::* queue_of, const Work& answer) {
  check::Lock lock(mutex_);
  Queue<T>& queue = this->*queue_of;
  for (;;) {
    while (queue.waiting.empty() && !ends_) queue.changed.wait(lock);
    if (queue.waiting.empty()) return;
    T next = std::move(queue.waiting.front());
    queue.waiting.pop_front();
    lock.unlock();
    answer(std::move(next));
    lock.lock();
  }
}

void DiskStore::find(std::vector<Name> names, Found done) {
  check::Lock lock(mutex_);
  if (ends_) {
    lock.unlock();
    return done(std::vector<bool>(names.size()));
  }
  finds_.waiting.push_back({std::move(names), std::move(done)});
  finds_.changed.notify_one();
}

void DiskStore::load(const Name& name, Buffer into, Loaded done) {
  check::Lock lock(mutex_);
  if (ends_) {
    lock.unlock();
    into.set_size(0);
    done(std::move(into));
    return;
  }
  loads_.waiting.push_back({outside(name), std::move(into), std::move(done)});
  loads_.changed.notify_one();
}

bool DiskStore::offer(const Name& name, Buffer piece) {
  const Name there = outside(name);
  const DiskFolder::Taken taken = folder_.take(there, piece.size() + (seal_ ? Seal::kBytes : 0));
  if (taken != DiskFolder::Taken::kTaken) return taken == DiskFolder::Taken::kThere;
  check::Lock lock(mutex_);
  if (ends_) {
    lock.unlock();
    folder_.give_up(there);
    return false;
  }
  writes_.waiting.push_back({there, std::move(piece)});
  writes_.changed.notify_one();
  return true;
}

bool DiskStore::ends() {
  const check::Lock lock(mutex_);
  return ends_.has_value();
}

void DiskStore::forget(const Which& which) {
  folder_.forget(seal_ ? seal_->outside(which) : which);
  const check::Lock lock(mutex_);
  tidy_now_ = true;
  keeper_.notify_one();
}

void DiskStore::answer(Find find) {
  std::vector<bool> held(find.names.size());
  const bool end = ends();
  for (std::size_t i = 0; i < held.size() && !end; ++i) held[i] = folder_.find(outside(find.names[i]));
  find.done(std::move(held));
}

void DiskStore::answer(Load load) {
  load.into.set_size(0);
  if (!ends()) folder_.read(load.name, load.into);
  const bool is_hit = load.into.size() > 0;
  const bool is_sound = !is_hit || !seal_ || seal_->open(load.name, load.into);
  const bool opens = load.done(std::move(load.into)) && is_sound;
  if (is_hit && !opens) folder_.put_aside(load.name);
}

void DiskStore::answer(Write write, int writer) {
  bool late = false;
  {
    const check::Lock lock(mutex_);
    late = ends_ && Clock::now() >= *ends_;
  }
  if (!late) seal_piece(write.piece.bytes());
  if (late || (seal_ && !seal_->close(write.name, write.piece))) {
    folder_.give_up(write.name);
  } else {
    folder_.write(write.name, write.piece, writer);
  }
}

void DiskStore::keep() {
  port::make_thread_nicer(kNicer);
  std::string said;
  for (;;) {
    bool more = false;
    auto pause = kTidyEvery;
    if (folder_.at_rest()) {
      const auto begun = Clock::now();
      const std::string why = folder_.open();
      if (ends()) return;
      const Counters counters = folder_.counters();
      const std::string line =
          why.empty() ? fmt::format("holds {} pieces of {} MiB; found in {:.1f} s", counters.pieces,
                                    counters.bytes >> 20, std::chrono::duration<double>(Clock::now() - begun).count())
                      : fmt::format("{}. It is tried again each {} s", why, kOpenEvery.count());
      if (!why.empty()) pause = kOpenEvery;
      if (why.empty() || why != said) say_(files_->name() + " " + line);
      said = why;
    } else {
      more = folder_.tidy();
    }
    check::Lock lock(mutex_);
    const auto until = Clock::now() + pause;
    while (!more && !ends_ && !tidy_now_ && keeper_.wait_until(lock, until)) {
    }
    tidy_now_ = false;
    if (!ends_) continue;
    const auto end = *ends_;
    lock.unlock();
    while (Clock::now() < end && folder_.tidy()) {  // what was forgotten doesn't come back with the next start
    }
    return;
  }
}

void DiskStore::stop(Clock::time_point until) {
  {
    const check::Lock lock(mutex_);
    if (ends_) return;
    ends_ = until;
    finds_.changed.notify_all();
    loads_.changed.notify_all();
    writes_.changed.notify_all();
    keeper_.notify_all();
  }
  folder_.stop_opening();
  for (std::thread& thread : threads_) thread.join();
  folder_.end();
}

}  // namespace coppice::tier
