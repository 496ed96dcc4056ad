#include "executor/ggml/store/pool_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <span>
#include <thread>
#include <vector>

#include "model/load_error.h"
#include "port/mapping.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;     // a huge one
constexpr std::size_t kPiece = std::size_t{256} << 20;  // taken between two words of progress

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
        if (!port::take_pages(part)) done = false;
      });
    }
  }
  return done;
}

}  // namespace

PoolMemory::PoolMemory(std::size_t size, int n_threads, const Progress& progress) try : memory_(size) {
  port::prefer_huge_pages(memory_.bytes());
  for (std::size_t done = 0; done < size; done += kPiece) {
    if (progress) progress("memory", static_cast<double>(done) / static_cast<double>(size));
    if (!take({data() + done, std::min(kPiece, size - done)}, n_threads)) throw std::bad_alloc();
  }
} catch (const std::bad_alloc&) {
  throw model::LoadError(fmt::format("not enough memory for a KV pool of {} bytes", size));
}

}  // namespace coppice::executor
