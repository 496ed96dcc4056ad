// Buffers: memory through which pieces go to a store and come back. There is a fixed number: who finds none drops a
// write, or waits with a load. All are of one size. Thread-safe; must outlive its buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "check/mutex.h"
#include "port/mapping.h"

namespace coppice::tier {

class Buffers;

/// One of them, or none. Move-only; its destructor gives it back, on any thread.
class [[nodiscard]] Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : home_(std::exchange(other.home_, nullptr)), memory_(other.memory_), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(home_, other.home_);
    std::swap(memory_, other.memory_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer();

  explicit operator bool() const { return home_ != nullptr; }
  /// All of its memory, aligned to kBufferAlignment; its length is a multiple of that.
  std::span<std::byte> memory() const { return home_ == nullptr ? std::span<std::byte>() : memory_; }
  /// What is in it: the first size() bytes.
  std::span<std::byte> bytes() const { return memory().first(size_); }
  std::size_t size() const { return size_; }
  /// REQUIRES: size <= memory().size().
  void set_size(std::size_t size);
  /// The same memory once more: it goes back with the last one. REQUIRES: there is one. From now on nobody writes to
  /// it.
  Buffer share() const;

 private:
  friend class Buffers;
  Buffer(Buffers& home, std::span<std::byte> memory) : home_(&home), memory_(memory) {}

  Buffers* home_ = nullptr;
  std::span<std::byte> memory_;
  std::size_t size_ = 0;
};

inline constexpr std::size_t kBufferAlignment = 4096;  ///< files may be read and written past the system's cache

class Buffers {
 public:
  /// `count` buffers of at least `size` bytes each; their memory is taken from the system as it is first touched.
  /// Throws std::bad_alloc.
  Buffers(std::size_t count, std::size_t size);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  /// An empty buffer; none when all are in use, or but `leave` are left.
  Buffer take(std::size_t leave = 0);

  std::size_t count() const { return count_; }
  std::size_t size() const { return size_; }                                  ///< of each: whole kBufferAlignment
  std::span<std::byte> memory() { return {memory_.data(), count_ * size_}; }  ///< of all
  std::size_t free() const;

 private:
  friend class Buffer;
  void give_back(std::span<std::byte> memory);
  std::uint32_t& users(std::span<std::byte> memory) COPPICE_REQUIRES(mutex_);

  std::size_t count_, size_;
  port::Mapping memory_;
  mutable check::Mutex mutex_;
  std::vector<std::byte*> free_ COPPICE_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> users_ COPPICE_GUARDED_BY(mutex_);  ///< of each; 0: it is free
};

}  // namespace coppice::tier
