// KeyTurns: in which order keys' requests stand in the queue. Each has a turn; a key has one request in each, and of one turn the first to
// come goes first. A key that comes anew joins those whose turn it is: so its first request waits for one of each other key at most,
// however many these have. With one key, turns are the order of arrival.
//
// Not thread safe; the engine's thread owns it. Whose a request is: Request::pin_payer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "check/assert.h"

namespace coppice::engine {

class KeyTurns {
 public:
  /// The turn of a request that comes.
  std::uint64_t come(const std::string& key) {
    const auto [own, is_new] = keys_.try_emplace(key);
    own->second.last = is_new ? reached_ : std::max(own->second.last + 1, reached_);
    ++own->second.open;
    return own->second.last;
  }
  /// One with this turn is admitted.
  void reach(std::uint64_t turn) { reached_ = std::max(reached_, turn); }
  /// It ends. `unused`: it was never admitted, and gives its turn to the next one.
  void leave(const std::string& key, std::uint64_t turn, bool unused) {
    const auto own = keys_.find(key);
    COPPICE_ASSERT(own != keys_.end());
    if (--own->second.open == 0) {
      keys_.erase(own);
    } else if (unused && own->second.last == turn && turn > 0) {
      --own->second.last;
    }
  }
  std::size_t keys() const { return keys_.size(); }

 private:
  struct Key {
    std::size_t open = 0;    ///< requests
    std::uint64_t last = 0;  ///< turn that it got
  };
  std::map<std::string, Key> keys_;  ///< that have open requests
  std::uint64_t reached_ = 0;
};

}  // namespace coppice::engine
