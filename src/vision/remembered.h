// Remembered: what was made at some cost, by digest, within a budget of bytes. Each value has a payer. Where the budget
// is used up, the payer of most loses what was not used for longest: so nobody's values go because of how many others
// there are.
//
// Thread safety: any number of threads at once.
//
// Invariants
//   1. What is kept weighs at most the budget. One that weighs more by itself is not kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
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
    auto& uses = found->second.payer->second.uses;
    uses.splice(uses.begin(), uses, found->second.use);
    return found->second.value;
  }

  /// What is there under this name stays, and its payer pays for it.
  void keep(const kv::Digest& name, Value value, std::size_t bytes, std::string_view payer) {
    constexpr std::size_t kNodes = 192;  // what the tree and the list take for each
    bytes += kNodes;
    if (bytes > budget_) return;
    const check::Lock lock(mutex_);
    if (kept_.contains(name)) return;
    while (bytes_ + bytes > budget_) drop_one();
    std::list<kv::Digest> use{name};  // what takes memory comes first
    const auto own = payers_.try_emplace(std::string(payer)).first;
    kept_.emplace(name, Kept{.value = std::move(value), .bytes = bytes, .payer = own, .use = use.begin()});
    own->second.uses.splice(own->second.uses.begin(), use);
    own->second.bytes += bytes;
    bytes_ += bytes;
  }

  void clear() {
    std::map<kv::Digest, Kept> dropped;  // goes without the lock
    const check::Lock lock(mutex_);
    dropped.swap(kept_);
    payers_.clear();
    bytes_ = 0;
  }

  std::size_t bytes() const {
    const check::Lock lock(mutex_);
    return bytes_;
  }

 private:
  struct Payer {
    std::list<kv::Digest> uses;  ///< the last used first
    std::size_t bytes = 0;
  };
  using Payers = std::map<std::string, Payer, std::less<>>;
  struct Kept {
    Value value;
    std::size_t bytes;
    Payers::iterator payer;
    std::list<kv::Digest>::iterator use;
  };

  /// REQUIRES: there is one.
  void drop_one() COPPICE_REQUIRES(mutex_) {
    const auto most = std::ranges::max_element(payers_, {}, [](const auto& payer) { return payer.second.bytes; });
    const auto oldest = kept_.find(most->second.uses.back());
    bytes_ -= oldest->second.bytes;
    most->second.bytes -= oldest->second.bytes;
    kept_.erase(oldest);
    most->second.uses.pop_back();
    if (most->second.uses.empty()) payers_.erase(most);
  }

  const std::size_t budget_;
  mutable check::Mutex mutex_;
  std::map<kv::Digest, Kept> kept_ COPPICE_GUARDED_BY(mutex_);
  Payers payers_ COPPICE_GUARDED_BY(mutex_);  ///< that have something
  std::size_t bytes_ COPPICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace coppice::vision
