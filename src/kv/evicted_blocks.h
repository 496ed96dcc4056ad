// EvictedBlocks: the uses of blocks that were evicted, so that a block that is computed again doesn't count as new. Not
// thread safe. A hash table of fixed size without chains: a later block overwrites an earlier one in its place, so old
// entries disappear by themselves. 30 bits of the digest besides the place tell blocks apart. A mistake costs one
// block's place in the eviction order, no more.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "kv/digest.h"

namespace coppice::kv {

class EvictedBlocks {
 public:
  struct Memory {
    std::uint32_t uses = 0;      ///< 1 .. kMostUses
    std::uint32_t last_use = 0;  ///< low bits of the clock
  };
  static constexpr std::uint32_t kMostUses = 3;  ///< counted no further

  /// Remembers about `count` blocks, in 8 bytes each.
  explicit EvictedBlocks(std::size_t count) : entries_(std::bit_ceil(count)) {}

  void remember(const Digest& digest, Memory memory) {
    entries_[place(digest)] = {tag(digest) | (memory.uses - 1), memory.last_use + 1};
  }
  std::optional<Memory> recall(const Digest& digest) const {
    const Entry& entry = entries_[place(digest)];
    if (entry.last_use_and_one == 0 || (entry.tag_and_uses & kTagBits) != tag(digest)) return std::nullopt;
    return Memory{(entry.tag_and_uses & ~kTagBits) + 1, entry.last_use_and_one - 1};
  }

 private:
  static constexpr std::uint32_t kTagBits = ~3U;
  static_assert(kMostUses <= 4);
  struct Entry {
    std::uint32_t tag_and_uses = 0;
    std::uint32_t last_use_and_one = 0;  // 0: empty
  };
  static std::uint32_t tag(const Digest& digest) {
    std::uint32_t bits;
    std::memcpy(&bits, digest.data(), sizeof bits);
    return bits & kTagBits;
  }
  std::size_t place(const Digest& digest) const {
    std::uint64_t bits;
    std::memcpy(&bits, digest.data() + sizeof(std::uint32_t), sizeof bits);
    return bits & (entries_.size() - 1);
  }

  std::vector<Entry> entries_;
};

}  // namespace coppice::kv
