// Remembered: what was made at some cost, by digest, within a budget of bytes. What was not used for longest goes first.
//
// Thread safety: any number of threads at once.
//
// Invariants
//   1. What is kept weighs at most the budget. One that weighs more by itself is not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "check/mutex.h"
#include "kv/types.h"

namespace coppice::vision {

/// Values are copied out: they are small, or share what is large.
template <class Value>
class Remembered {
 public:
  explicit Remembered(std::size_t budget_bytes) : budget_(budget_bytes) {}

  std::optional<Value> find(const kv::Digest& name) {
    const check::Lock lock(mutex_);
    const auto found = kept_.find(name);
    if (found == kept_.end()) return std::nullopt;
    uses_.splice(uses_.begin(), uses_, found->second.use);
    return found->second.value;
  }

  /// What is there under this name stays.
  void keep(const kv::Digest& name, Value value, std::size_t bytes) {
    constexpr std::size_t kNodes = 192;  // what the tree and the list take for each
    bytes += kNodes;
    if (bytes > budget_) return;
    const check::Lock lock(mutex_);
    if (kept_.contains(name)) return;
    while (bytes_ + bytes > budget_) drop_one();
    uses_.push_front(name);
    kept_.emplace(name, Kept{.value = std::move(value), .bytes = bytes, .use = uses_.begin()});
    bytes_ += bytes;
  }

  std::size_t bytes() const {
    const check::Lock lock(mutex_);
    return bytes_;
  }

 private:
  struct Kept {
    Value value;
    std::size_t bytes;
    std::list<kv::Digest>::iterator use;
  };

  /// REQUIRES: there is one.
  void drop_one() COPPICE_REQUIRES(mutex_) {
    const auto oldest = kept_.find(uses_.back());
    bytes_ -= oldest->second.bytes;
    kept_.erase(oldest);
    uses_.pop_back();
  }

  const std::size_t budget_;
  mutable check::Mutex mutex_;
  std::map<kv::Digest, Kept> kept_ COPPICE_GUARDED_BY(mutex_);
  std::list<kv::Digest> uses_ COPPICE_GUARDED_BY(mutex_);  ///< the last used first
  std::size_t bytes_ COPPICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace coppice::vision
