#include "executor/ggml/store/pool_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <span>
#include <thread>
#include <vector>

#include "model/load_error.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;     // a huge one
constexpr std::size_t kPiece = std::size_t{256} << 20;  // taken between two words of progress

/// False: there is no such memory. A kernel that doesn't know the request is no failure.
bool take(std::span<std::byte> part) {
  while (::madvise(part.data(), part.size(), MADV_POPULATE_WRITE) != 0) {
    if (errno == EINVAL) return true;
    if (errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

/// Each thread takes a part of whole pages.
bool take(std::span<std::byte> piece, int n_threads) {
  const std::size_t pages = (piece.size() + kPage - 1) / kPage;
  const std::size_t share =
      (pages + static_cast<std::size_t>(n_threads) - 1) / static_cast<std::size_t>(n_threads) * kPage;
  std::atomic<bool> done = true;
  {
    std::vector<std::jthread> threads;
    for (std::size_t at = 0; at < piece.size(); at += share) {
      const auto part = piece.subspan(at, std::min(share, piece.size() - at));
      threads.emplace_back([part, &done] {
        if (!take(part)) done = false;
      });
    }
  }
  return done;
}

}  // namespace

void PoolMemory::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, size);
}

PoolMemory::PoolMemory(std::size_t size, int n_threads, const Progress& progress) {
  const auto refused = [&] {
    return model::LoadError(fmt::format("not enough memory for a KV pool of {} bytes", size));
  };
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw refused();
  memory_ = {static_cast<std::byte*>(memory), Unmap{size}};
  ::madvise(memory, size, MADV_HUGEPAGE);
  for (std::size_t done = 0; done < size; done += kPiece) {
    if (progress) progress("memory", static_cast<double>(done) / static_cast<double>(size));
    if (!take({data() + done, std::min(kPiece, size - done)}, n_threads)) throw refused();
  }
}

}  // namespace coppice::executor
