#include "tier/queued_store.h"

#include <algorithm>

#include "tier/piece.h"

namespace coppice::tier {

void QueuedStore::find(std::vector<Name> names, Found done) {
  check::Lock lock(mutex_);
  if (!ends_) return finds_.add({std::move(names), std::move(done)});
  lock.unlock();
  done(std::vector<bool>(names.size()));
}

void QueuedStore::load(const Name& name, Buffer into, Loaded done) {
  Load load{outside(name), std::move(into), std::move(done)};
  load.into.set_size(0);
  check::Lock lock(mutex_);
  if (!ends_) return loads_.add(std::move(load));
  lock.unlock();
  load.done(std::move(load.into));
}

bool QueuedStore::ends() const {
  const check::Lock lock(mutex_);
  return ends_.has_value();
}

bool QueuedStore::is_late() const {
  const check::Lock lock(mutex_);
  return ends_ && Clock::now() >= *ends_;
}

bool QueuedStore::close(Write& write) const {
  seal_piece(write.piece.bytes());
  return !seal_ || seal_->close(write.name, write.piece);
}

bool QueuedStore::give(Load load) const {
  const bool is_hit = load.into.size() > 0;
  const bool is_sound = !is_hit || !seal_ || seal_->open(load.name, load.into);
  const bool opens = load.done(std::move(load.into)) && is_sound;
  return !is_hit || opens;
}

void QueuedStore::begin_end(Clock::time_point until) {
  const check::Lock lock(mutex_);
  if (ends_) return;
  ends_ = until;
  finds_.changed.notify_all();
  loads_.changed.notify_all();
  writes_.changed.notify_all();
  keeper_.notify_all();
}

void QueuedStore::stop(Clock::time_point until) {
  begin_end(until);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace coppice::tier
