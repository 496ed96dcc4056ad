// BodyBudget: the memory that bodies of requests may take, over all connections. A body is charged as its bytes arrive, not as
// its head announces them, so an announcement takes nothing from others. The first bytes of each body are free, so small
// requests find room whatever the large ones take.
//
// Belongs to the io thread. Outlives its charges.
//
// Invariants
//   1. used() is the sum of the charges.
//   2. What the charges have beyond their free bytes is, together, at most the limit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "check/assert.h"

namespace coppice::server {

class BodyBudget {
 public:
  /// `limit`: bytes for all bodies together, but for the first `free` bytes of each.
  BodyBudget(std::size_t limit, std::size_t free) : limit_(limit), free_(free) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;

  std::size_t used() const { return used_; }  ///< bytes

  /// One body's part. Given back when this ends.
  class Charge {
   public:
    Charge() = default;
    explicit Charge(BodyBudget& budget) : budget_(&budget) {}
    Charge(Charge&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Charge& operator=(Charge&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Charge() {
      if (budget_ == nullptr) return;
      budget_->used_ -= bytes_;
      budget_->limited_ -= budget_->limited(bytes_);
    }

    std::size_t bytes() const { return bytes_; }

    /// Raises the charge to `bytes`. False, and nothing changed: there is no room.
    /// REQUIRES: made of a budget; `bytes` is not less than before.
    bool raise(std::size_t bytes) {
      COPPICE_ASSERT(budget_ != nullptr && bytes >= bytes_);
      const std::size_t more = budget_->limited(bytes) - budget_->limited(bytes_);
      if (more > budget_->limit_ - budget_->limited_) return false;
      budget_->limited_ += more;
      budget_->used_ += bytes - bytes_;
      bytes_ = bytes;
      return true;
    }

   private:
    BodyBudget* budget_ = nullptr;
    std::size_t bytes_ = 0;
  };

 private:
  /// What of a body's bytes counts against the limit.
  std::size_t limited(std::size_t bytes) const { return bytes - std::min(bytes, free_); }

  std::size_t limit_, free_;
  std::size_t used_ = 0;
  std::size_t limited_ = 0;  ///< what of used_ counts against the limit
};

}  // namespace coppice::server
