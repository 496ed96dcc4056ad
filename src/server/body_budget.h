// BodyBudget: the memory that bodies of requests may take, over all connections. A body is charged as its bytes arrive,
// not as its head announces them: a client that sends nothing takes nothing from the others.
//
// Belongs to the io thread. Outlives its charges.
//
// Invariant: used() is the sum of the charges, and at most the limit.
#pragma once

#include <cstddef>
#include <utility>

namespace coppice::server {

class BodyBudget {
 public:
  explicit BodyBudget(std::size_t limit) : limit_(limit) {}
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
      if (budget_ != nullptr) budget_->used_ -= bytes_;
    }

    /// Raises the charge to `bytes`. False, and nothing changed: there is no room.
    /// REQUIRES: made of a budget; `bytes` is not less than before.
    bool raise(std::size_t bytes) {
      if (bytes - bytes_ > budget_->limit_ - budget_->used_) return false;
      budget_->used_ += bytes - bytes_;
      bytes_ = bytes;
      return true;
    }

   private:
    BodyBudget* budget_ = nullptr;
    std::size_t bytes_ = 0;
  };

 private:
  std::size_t limit_;
  std::size_t used_ = 0;
};

}  // namespace coppice::server
