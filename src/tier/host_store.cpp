#include "tier/host_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tier/piece.h"
#include "tier/store_observer.h"

namespace coppice::tier {

HostStore::HostStore(std::size_t most, int loaders) : QueuedStore({}), most_(std::max<std::size_t>(most, 1)) {
  counters_.kind = StoreKind::kHost;
  threads_.emplace_back([this] { work(&HostStore::finds_, [this](Find find) { answer(std::move(find)); }); });
  for (int i = 0; i < loaders; ++i)
    threads_.emplace_back([this] { work(&HostStore::loads_, [this](Load load) { answer(std::move(load)); }); });
  threads_.emplace_back([this] { work(&HostStore::writes_, [this](Write write) { answer(std::move(write)); }); });
}

HostStore::~HostStore() {
  stop(Clock::now());
}

void HostStore::use(Held& held) {
  held.used = Clock::now();
  turns_.splice(turns_.end(), turns_, held.turn);
}

void HostStore::drop(Pieces::iterator piece) {
  if (piece->second.told) observer_->left(StoreKind::kHost, piece->first);
  counters_.bytes -= static_cast<std::int64_t>(piece->second.piece.size());
  turns_.erase(piece->second.turn);
  pieces_.erase(piece);
}

void HostStore::observe(StoreObserver& observer, const std::array<std::uint8_t, 16>& model) {
  const check::Lock lock(mutex_);
  observer_ = &observer;
  observed_ = model;
  for (auto& [name, held] : pieces_) tell(name, held);
}

void HostStore::tell(const Name& name, Held& held) {
  if (observer_ == nullptr || name.model != observed_) return;
  const auto head = open_head(held.piece.bytes());
  held.told = head && !head->origin.empty();
  if (held.told) observer_->entered(StoreKind::kHost, name, *head);
}

bool HostStore::offer(const Name& name, Buffer piece) {
  const check::Lock lock(mutex_);
  if (ends_) {
    ++counters_.dropped;
    return false;
  }
  if (const auto held = pieces_.find(name); held != pieces_.end()) {
    use(held->second);
    return true;
  }
  if (!under_way_.try_emplace(name, false).second) return true;
  ++counters_.pending;
  writes_.add({name, std::move(piece)});
  return true;
}

void HostStore::forget(const Which& which) {
  if (which.kind && !is_at(*which.kind)) return;
  const auto meets = [&](const Name& name) {
    return (!which.model || name.model == *which.model) && (!which.space || name.space == *which.space);
  };
  const check::Lock lock(mutex_);
  const Clock::time_point now = Clock::now();
  for (auto at = pieces_.begin(); at != pieces_.end();) {
    const auto piece = at++;
    if (meets(piece->first) && (!which.unused_for || now - piece->second.used >= *which.unused_for)) drop(piece);
  }
  for (auto& [name, forgotten] : under_way_) forgotten |= meets(name) && !which.unused_for;
}

void HostStore::answer(Find find) {
  std::vector<bool> held;
  {
    const check::Lock lock(mutex_);
    for (const Name& name : find.names) held.push_back(pieces_.contains(name));
    counters_.finds += std::ssize(held);
    counters_.found += std::ranges::count(held, true);
  }
  find.done(std::move(held));
}

void HostStore::answer(Load load) {
  const Name name = load.name;
  const auto begun = Clock::now();
  {
    const check::Lock lock(mutex_);
    const auto held = pieces_.find(name);
    ++(held != pieces_.end() ? counters_.loads : counters_.load_misses);
    if (held != pieces_.end()) {
      use(held->second);
      load.into = held->second.piece.share();
      counters_.load_bytes += static_cast<std::int64_t>(load.into.size());
    }
  }
  const bool opens = give(std::move(load));
  const check::Lock lock(mutex_);
  counters_.load_seconds += std::chrono::duration<double>(Clock::now() - begun).count();
  if (opens) return;
  ++counters_.damaged;
  if (const auto held = pieces_.find(name); held != pieces_.end()) drop(held);
}

void HostStore::answer(Write write) {
  const auto begun = Clock::now();
  seal_head(write.piece.bytes());
  const auto bytes = static_cast<std::int64_t>(write.piece.size());
  const check::Lock lock(mutex_);
  const auto under_way = under_way_.extract(write.name);
  const bool wanted = !ends_ && !under_way.mapped();
  --counters_.pending;
  counters_.write_seconds += std::chrono::duration<double>(Clock::now() - begun).count();
  ++(wanted ? counters_.writes : counters_.dropped);
  if (!wanted) return;
  counters_.write_bytes += bytes;
  counters_.bytes += bytes;
  while (pieces_.size() >= most_) {
    ++counters_.evicted;
    drop(pieces_.find(turns_.front()));
  }
  const auto turn = turns_.insert(turns_.end(), write.name);
  const auto added = pieces_.emplace(write.name, Held{std::move(write.piece), Clock::now(), turn}).first;
  tell(write.name, added->second);
}

Counters HostStore::counters() const {
  const check::Lock lock(mutex_);
  Counters counters = counters_;
  counters.on = !ends_;
  if (ends_) counters.off_because = "has ended";
  counters.pieces = std::ssize(pieces_);
  return counters;
}

// What it holds is worth nothing to the next server.
void HostStore::stop(Clock::time_point until) {
  QueuedStore::stop(until);
  const check::Lock lock(mutex_);
  pieces_.clear();
  turns_.clear();
  counters_.bytes = 0;
}

}  // namespace coppice::tier
