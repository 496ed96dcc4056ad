// ReplayLog: the last batches of events, in a row of numbers, for those who missed some. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

namespace coppice::events {

class ReplayLog {
 public:
  /// It keeps so many batches, and of their bytes so many; always the last one. The first one gets this number.
  ReplayLog(std::uint64_t first, std::size_t most, std::size_t most_bytes)
      : most_(most), most_bytes_(most_bytes), first_(first) {}

  /// Returns its number.
  std::uint64_t add(std::shared_ptr<const std::string> batch) {
    bytes_ += batch->size();
    batches_.push_back(std::move(batch));
    while (batches_.size() > 1 && (batches_.size() > most_ || bytes_ > most_bytes_)) {
      bytes_ -= batches_.front()->size();
      batches_.pop_front();
      ++first_;
    }
    return end() - 1;
  }

  std::uint64_t first() const { return first_; }                  ///< of those that are kept
  std::uint64_t end() const { return first_ + batches_.size(); }  ///< behind the last one
  /// REQUIRES: first() <= number < end().
  std::shared_ptr<const std::string> at(std::uint64_t number) const {
    return batches_[static_cast<std::size_t>(number - first_)];
  }

 private:
  const std::size_t most_, most_bytes_;
  std::deque<std::shared_ptr<const std::string>> batches_;
  std::uint64_t first_;
  std::size_t bytes_ = 0;
};

}  // namespace coppice::events
