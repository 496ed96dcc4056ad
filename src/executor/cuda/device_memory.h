// Memory of the GPU that is current on the calling thread, and host memory that it copies from and to while others
// compute. Owning; not copied.
#pragma once

#include <cstddef>
#include <memory>

namespace coppice::executor::cuda {

inline constexpr double kMiB = 1024.0 * 1024.0;
/// Up to where the next array in the same range of memory may begin: as cudaMalloc aligns them.
constexpr std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Throws std::runtime_error with CUDA's words if `status` (a cudaError_t) is an error: "the GPU failed: WHAT: ...";
/// where memory is missing, model::LoadError.
void check(int status, const char* what);

class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Zeroed by the time that it is there, for whichever stream. Throws model::LoadError with figures when there is too
  /// little. what: for that sentence.
  DeviceMemory(std::size_t bytes, const char* what);
  /// Holds a copy.
  DeviceMemory(const void* from, std::size_t bytes, const char* what);

  template <class T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(memory_.get() + offset);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes);

  std::size_t size() const { return size_; }
  template <class T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(memory_.get() + offset);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::size_t size_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

/// Free on the current GPU, and all that it has.
std::size_t free_bytes();
std::size_t total_bytes();

}  // namespace coppice::executor::cuda
