// EvictedPrefixes: which blocks were evicted lately, so that a miss can be explained. Not thread safe.
//
// A table of fixed size, by digest: an entry costs one store, the latest of two that fall on one place stays. What it says
// is true but for equal 64-bit parts of two digests; what it has forgotten it doesn't say.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kv/digest.h"

namespace coppice::kv {

class EvictedPrefixes {
 public:
  /// Room for about four times as many blocks as the pool has.
  explicit EvictedPrefixes(std::int64_t pool_blocks)
      : marks_(std::bit_ceil(static_cast<std::size_t>(std::clamp<std::int64_t>(4 * pool_blocks, 1 << 8, 1 << 20)))) {}

  void remember(const Digest& digest) {
    const std::uint64_t m = mark(digest);
    marks_[m & (marks_.size() - 1)] = m;
  }
  bool contains(const Digest& digest) const {
    const std::uint64_t m = mark(digest);
    return marks_[m & (marks_.size() - 1)] == m;
  }

 private:
  static std::uint64_t mark(const Digest& digest) {
    std::uint64_t m = 0;
    std::memcpy(&m, digest.data(), sizeof(m));
    return m | std::uint64_t{1} << 63;  // 0 is an empty place
  }
  std::vector<std::uint64_t> marks_;
};

}  // namespace coppice::kv
