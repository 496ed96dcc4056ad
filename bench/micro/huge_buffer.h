// Memory on huge pages: with pages of 4 KiB, reading shuffled blocks would measure the page tables, too.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace coppice::bench {

/// Owns `size` zeroed bytes, page aligned.
class HugeBuffer {
 public:
  explicit HugeBuffer(std::size_t size) : size_(size) {
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(p);
    madvise(data_, size_, MADV_HUGEPAGE);
  }
  ~HugeBuffer() { munmap(data_, size_); }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace coppice::bench
