#include "tier/disk/disk_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <utility>

#include "port/process.h"
#include "tier/piece.h"

namespace coppice::tier {

namespace {

constexpr std::chrono::seconds kTidyEvery{1}, kOpenEvery{5};

}  // namespace

DiskStore::DiskStore(std::unique_ptr<FileSystem> files, const DiskLimits& limits, Threads threads, DiskFolder::Say say,
                     std::optional<Seal> seal)
    : QueuedStore(seal), files_(std::move(files)), say_(std::move(say)), folder_(*files_, limits, say_) {
  const auto begin = [this](auto work) { threads_.emplace_back([work] { again(work); }); };
  begin([this] { keep(); });
  begin([this] { work(&DiskStore::finds_, [this](Find find) { answer(std::move(find)); }); });
  for (int i = 0; i < threads.readers; ++i)
    begin([this] { work(&DiskStore::loads_, [this](Load load) { answer(std::move(load)); }); });
  for (int i = 0; i < threads.writers; ++i) {
    begin([this, i] {
      port::make_thread_nicer(kWritersNicer);
      work(&DiskStore::writes_, [this, i](Write write) { answer(std::move(write), i); });
    });
  }
}

DiskStore::~DiskStore() {
  stop(Clock::now());
}

bool DiskStore::offer(const Name& name, Buffer piece) {
  const Name there = outside(name);
  const DiskFolder::Taken taken = folder_.take(there, size_outside(piece));
  if (taken != DiskFolder::Taken::kTaken) return taken == DiskFolder::Taken::kThere;
  check::Lock lock(mutex_);
  if (ends_) {
    lock.unlock();
    folder_.give_up(there);
    return false;
  }
  writes_.add({there, std::move(piece)});
  return true;
}

void DiskStore::forget(const Which& which) {
  if (which.kind && !is_at(*which.kind)) return;
  folder_.forget(outside(which));
  const check::Lock lock(mutex_);
  tidy_now_ = true;
  keeper_.notify_one();
}

void DiskStore::observe(StoreObserver& observer, const std::array<std::uint8_t, 16>& model) {
  folder_.observe(observer, outside(Which{.model = model}).model.value());
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
  const Name name = load.name;
  if (!ends()) folder_.read(name, load.into);
  if (!give(std::move(load))) folder_.put_aside(name);
}

void DiskStore::answer(Write write, int writer) {
  std::array<std::byte, kHeadBytes> bytes;
  std::span<const std::byte> head;
  if (folder_.observes(write.name)) {  // it may be closed in place
    const auto first = write.piece.bytes().first(std::min(write.piece.size(), bytes.size()));
    std::ranges::copy(first, bytes.begin());
    head = std::span(bytes).first(first.size());
  }
  if (is_late() || !close(write)) {
    folder_.give_up(write.name);
  } else {
    folder_.write(write.name, write.piece, writer, head);
  }
}

void DiskStore::keep() {
  port::make_thread_nicer(kWritersNicer);
  std::string said;
  DiskFolder::Unseal unseal;
  if (seals()) unseal = [this](const Name& name, auto head, auto end) { return unseal_head(name, head, end); };
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
      more = why.empty();
    } else {
      more = folder_.tidy();
      more = folder_.tell_some(unseal) || more;
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
  begin_end(until);
  folder_.stop_opening();
  QueuedStore::stop(until);
  folder_.end();
}

}  // namespace coppice::tier
