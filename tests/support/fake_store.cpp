#include "support/fake_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tier/piece.h"

namespace coppice::testing {

namespace {

/// Outlives all that an engine has of it.
tier::Buffers& shared_memory() {
  static tier::Buffers& memory = *new tier::Buffers(1024, std::size_t{1} << 18);
  return memory;
}

}  // namespace

void FakeStore::find(std::vector<tier::Name> names, Found done) {
  if (stopped_) return done(std::vector<bool>(names.size()));
  for (const tier::Name& name : names) wanted_while_written_ += is_written(name) ? 1 : 0;
  asked_.push_back({.names = std::move(names), .found = std::move(done), .loaded = {}, .buffer = {}});
}

void FakeStore::load(const tier::Name& name, tier::Buffer into, Loaded done) {
  if (stopped_) {
    done(std::move(into));
    return;
  }
  if (habits_.shares) into = shared_memory().take();
  asked_.push_back({.names = {name}, .found = {}, .loaded = std::move(done), .buffer = std::move(into)});
}

bool FakeStore::offer(const tier::Name& name, tier::Buffer piece) {
  if (stopped_ || dice_.chance(habits_.drops)) return false;
  asked_.push_back({.names = {name}, .found = {}, .loaded = {}, .buffer = std::move(piece)});
  return true;
}

void FakeStore::forget(const tier::Which& which) {
  if (ignores_forget_) return;
  const auto meets = [&](const tier::Name& name) {
    return (!which.model || name.model == *which.model) && (!which.space || name.space == *which.space);
  };
  std::erase_if(*contents_, [&](const auto& piece) { return meets(piece.first); });
  std::erase_if(asked_, [&](const Asked& asked) { return !asked.found && !asked.loaded && meets(asked.names[0]); });
}

std::vector<tier::Counters> FakeStore::places() const {
  return {{.on = true, .pieces = static_cast<std::int64_t>(contents_->size()), .pending = waiting_writes()}};
}

bool FakeStore::is_written(const tier::Name& name) const {
  return std::ranges::any_of(
      asked_, [&](const Asked& asked) { return !asked.found && !asked.loaded && asked.names[0] == name; });
}

void FakeStore::stop(tier::Clock::time_point /*until*/) {
  stopped_ = true;
  while (!asked_.empty()) {
    Asked asked = std::move(asked_.front());
    asked_.pop_front();
    run(asked);
  }
}

std::int64_t FakeStore::waiting_writes() const {
  return std::ranges::count_if(asked_, [](const Asked& asked) { return !asked.found && !asked.loaded; });
}

void FakeStore::turn() {
  if (stalled_) return;
  std::deque<Asked> now;
  for (Asked& asked : std::exchange(asked_, {}))
    (dice_.chance(habits_.late) ? asked_ : now).push_back(std::move(asked));
  while (!now.empty()) {
    std::swap(dice_.one_of(now), now.back());
    Asked asked = std::move(now.back());
    now.pop_back();
    run(asked);
  }
  if (dice_.chance(habits_.forgets) && !contents_->empty())
    contents_->erase(std::next(contents_->begin(), dice_.below(std::ssize(*contents_))));
}

void FakeStore::run(Asked& asked) {
  if (asked.found) {
    std::vector<bool> held;
    for (const tier::Name& name : asked.names) {
      const bool is = contents_->contains(name);
      found_ += is ? 1 : 0;
      held.push_back(is != dice_.chance(habits_.wrong_answer));
    }
    return asked.found(std::move(held));
  }
  const tier::Name& name = asked.names[0];
  if (!asked.loaded) {
    tier::seal_piece(asked.buffer.bytes());
    const auto bytes = asked.buffer.bytes();
    (*contents_)[name].assign(bytes.begin(), bytes.end());
    ++written_;
    return;
  }
  const auto held = contents_->find(name);
  if (held == contents_->end() || dice_.chance(habits_.fails)) {
    ++missed_;
    asked.buffer.set_size(0);
    asked.loaded(std::move(asked.buffer));
    return;
  }
  std::vector<std::byte> bytes = held->second;
  if (dice_.chance(habits_.lies)) lie(name, bytes);
  asked.buffer.set_size(std::min(bytes.size(), asked.buffer.memory().size()));
  std::copy_n(bytes.begin(), asked.buffer.size(), asked.buffer.memory().begin());
  const bool opened = asked.loaded(std::move(asked.buffer));
  ++(opened ? brought_ : refused_);
  if (!opened) contents_->erase(held);
}

void FakeStore::lie(const tier::Name& name, std::vector<std::byte>& bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  const auto piece = tier::open_piece(bytes, &name);
  if (habits_.undetectable) {
    if (!piece || piece->payload.empty()) return;
    bytes[static_cast<std::size_t>(size) - piece->payload.size()] ^= std::byte{1};
    return tier::seal_piece(bytes);
  }
  switch (dice_.below(4)) {
    case 0:
      bytes[static_cast<std::size_t>(dice_.below(size))] ^= std::byte{1} << dice_.below(8);
      return;
    case 1:
      return bytes.resize(static_cast<std::size_t>(dice_.below(size)));
    case 2:  // another piece
      bytes = dice_.one_of(*contents_).second;
      return;
    default: {  // another piece under this one's name, as if their names collided
      const std::vector<std::byte>& other = dice_.one_of(*contents_).second;
      const auto theirs = tier::open_piece(other, nullptr);
      if (!piece || !theirs || std::ranges::equal(piece->text, theirs->text)) return bytes.resize(0);
      std::vector<std::byte> forged(
          tier::piece_size(theirs->text.size(), theirs->about.size(), theirs->payload.size()));
      const auto place = tier::begin_piece(forged, name, theirs->text, theirs->about, theirs->payload.size());
      std::ranges::copy(theirs->payload, place.begin());
      tier::seal_piece(forged);
      bytes = std::move(forged);
    }
  }
}

}  // namespace coppice::testing
