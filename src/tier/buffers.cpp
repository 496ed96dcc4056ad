#include "tier/buffers.h"

#include "check/assert.h"

namespace coppice::tier {

Buffer::~Buffer() {
  if (home_ != nullptr) home_->give_back(memory_);
}

void Buffer::set_size(std::size_t size) {
  COPPICE_ASSERT(size <= memory().size());
  size_ = size;
}

Buffer Buffer::share() const {
  COPPICE_ASSERT(home_ != nullptr);
  const check::Lock lock(home_->mutex_);
  ++home_->users(memory_);
  Buffer other(*home_, memory_);
  other.size_ = size_;
  return other;
}

Buffers::Buffers(std::size_t count, std::size_t size)
    : count_(count),
      size_((size + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment),
      memory_(count_ * size_) {
  users_.resize(count);
  free_.reserve(count);
  for (std::size_t i = count; i-- > 0;) free_.push_back(memory_.data() + i * size_);
}

Buffers::~Buffers() {
  COPPICE_ASSERT(free() == count_);
}

Buffer Buffers::take(std::size_t leave) {
  const check::Lock lock(mutex_);
  if (free_.size() <= leave) return {};
  std::byte* const memory = free_.back();
  free_.pop_back();
  users({memory, size_}) = 1;
  return {*this, std::span(memory, size_)};
}

std::size_t Buffers::free() const {
  const check::Lock lock(mutex_);
  return free_.size();
}

void Buffers::give_back(std::span<std::byte> memory) {
  const check::Lock lock(mutex_);
  if (--users(memory) == 0) free_.push_back(memory.data());  // there is room for all
}

std::uint32_t& Buffers::users(std::span<std::byte> memory) {
  return users_[static_cast<std::size_t>(memory.data() - memory_.data()) / size_];
}

}  // namespace coppice::tier
