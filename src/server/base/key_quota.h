// KeyQuota: how many of something there may be at once, in all and of each key.
//
// Belongs to the io thread. Outlives its places.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "check/assert.h"
#include "check/thread_role.h"

namespace coppice::server {

class KeyQuota {
 public:
  /// `of_key` doesn't bind those without a key: nobody can tell them apart.
  struct Limits {
    std::size_t all = 0, of_key = 0;
  };
  explicit KeyQuota(Limits limits) : limits_(limits) {}
  KeyQuota(const KeyQuota&) = delete;
  KeyQuota& operator=(const KeyQuota&) = delete;

  /// One of them. Its room is given back when this ends.
  class Permit {
   public:
    Permit(Permit&& other) noexcept : quota_(std::exchange(other.quota_, nullptr)), key_(std::move(other.key_)) {}
    Permit& operator=(Permit&&) = delete;
    ~Permit() {
      if (quota_ != nullptr) quota_->give_back(key_);
    }

   private:
    friend class KeyQuota;
    Permit(KeyQuota& quota, std::string key) noexcept : quota_(&quota), key_(std::move(key)) {}
    KeyQuota* quota_;
    std::string key_;
  };

  /// `key`: HttpRequest::tenant. None: there is no room.
  std::optional<Permit> take(const std::string& key) {
    COPPICE_ASSERT(io_thread_.mine());
    const auto known = of_key_.find(key);
    const std::size_t of_key = known == of_key_.end() ? 0 : known->second;
    if (used_ >= limits_.all || (!key.empty() && of_key >= limits_.of_key)) return std::nullopt;
    std::string own = key;
    ++of_key_[key];
    ++used_;
    return Permit(*this, std::move(own));
  }
  std::size_t used() const { return used_; }

 private:
  void give_back(const std::string& key) {
    COPPICE_ASSERT(io_thread_.mine());
    --used_;
    const auto of_key = of_key_.find(key);
    if (--of_key->second == 0) of_key_.erase(of_key);
  }

  check::ThreadRole io_thread_;
  const Limits limits_;
  std::size_t used_ = 0;
  std::unordered_map<std::string, std::size_t> of_key_;  ///< none has 0
};

}  // namespace coppice::server
