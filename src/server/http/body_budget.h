// BodyBudget: the memory that bodies of requests may take, over all connections. A body is charged as its bytes arrive,
// not as its head announces them, so an announcement takes nothing from others. The first bytes of each body have room
// of their own, so small requests find some whatever the large ones take; of that room nobody gets more than half. Of
// the other nobody gets more than seven times of what is left: so whoever comes finds some, however much a few take.
//
// Belongs to the io thread. Outlives its charges.
//
// Invariants
//   1. used() is the sum of the charges.
//   2. What the charges have beyond their first bytes is, together, at most the limit; their first bytes at most
//      `small`, and those of one payer half of that. When a charge is raised beyond its first bytes, its payer's have
//      kMostOfRest times of what is left at most.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "check/assert.h"
#include "check/thread_role.h"

namespace coppice::server {

class BodyBudget {
 public:
  static constexpr std::size_t kMostOfRest = 7;

  /// `limit`: bytes for all bodies together, but for the first `first` bytes of each, which share `small`.
  BodyBudget(std::size_t limit, std::size_t first, std::size_t small = std::numeric_limits<std::size_t>::max())
      : limit_(limit), first_(first), small_(small) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;

  std::size_t used() const { return used_; }  ///< bytes

  /// One body's part. Given back when this ends.
  class Charge {
   public:
    Charge() = default;
    /// `payer`: a key's tenant or an address.
    Charge(BodyBudget& budget, std::string payer) : budget_(&budget), payer_(std::move(payer)) {}
    Charge(Charge&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          payer_(std::move(other.payer_)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    Charge& operator=(Charge&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(payer_, other.payer_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Charge() {
      if (budget_ != nullptr) budget_->give_back(payer_, bytes_);
    }

    std::size_t bytes() const { return bytes_; }

    /// Raises the charge to `bytes`. False, and nothing changed: there is no room.
    /// REQUIRES: made of a budget; `bytes` is not less than before.
    bool raise(std::size_t bytes) {
      COPPICE_ASSERT(budget_ != nullptr && bytes >= bytes_);
      if (!budget_->take(payer_, bytes_, bytes)) return false;
      bytes_ = bytes;
      return true;
    }

   private:
    BodyBudget* budget_ = nullptr;
    std::string payer_;
    std::size_t bytes_ = 0;
  };

 private:
  /// What one payer has.
  struct Share {
    std::size_t first = 0, rest = 0;
    bool none() const { return first == 0 && rest == 0; }
  };

  std::size_t first(std::size_t bytes) const { return std::min(bytes, first_); }

  bool take(const std::string& payer, std::size_t from, std::size_t to) {
    COPPICE_ASSERT(io_thread_.mine());
    const std::size_t more_small = first(to) - first(from), more = to - from - more_small;
    if (more > limit_ - limited_ || more_small > small_ - small_used_) return false;
    if (to == from) return true;
    const auto of_payer = of_payer_.try_emplace(payer).first;
    Share& share = of_payer->second;
    const bool fair = share.first + more_small <= small_ / 2 &&
                      (more == 0 || (share.rest + more + kMostOfRest - 1) / kMostOfRest <= limit_ - limited_ - more);
    if (!fair) {
      if (share.none()) of_payer_.erase(of_payer);
      return false;
    }
    share.first += more_small;
    share.rest += more;
    small_used_ += more_small;
    limited_ += more;
    used_ += to - from;
    return true;
  }
  void give_back(const std::string& payer, std::size_t bytes) {
    COPPICE_ASSERT(io_thread_.mine());
    if (const auto of_payer = of_payer_.find(payer); of_payer != of_payer_.end()) {
      of_payer->second.first -= first(bytes);
      of_payer->second.rest -= bytes - first(bytes);
      if (of_payer->second.none()) of_payer_.erase(of_payer);
    }
    small_used_ -= first(bytes);
    limited_ -= bytes - first(bytes);
    used_ -= bytes;
  }

  check::ThreadRole io_thread_;
  const std::size_t limit_, first_, small_;
  std::size_t used_ = 0;
  std::size_t small_used_ = 0;
  std::size_t limited_ = 0;                          ///< what of used_ counts against the limit
  std::unordered_map<std::string, Share> of_payer_;  ///< none has nothing
};

}  // namespace coppice::server
