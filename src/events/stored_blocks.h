// StoredBlocks: which full blocks the tiers behind the pool hold, between the stores' threads and the one that tells
// routers. It remembers them all, some 400 bytes each: nobody else could tell them once more but by reading the folder
// again.
//
// Threads: tier::StoreObserver's functions belong to the stores', and only copy; add_to() belongs to whoever sends;
// start() comes before both.
//
// Invariants
//  1. What add_to() has given since the last Changes::anew is what was told up to some moment, of each medium.
//  2. A block is told only if its piece's name is the one that its text and its origin give: the first bytes of a
//     damaged or foreign piece tell nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "check/mutex.h"
#include "events/changes.h"
#include "kv/block_bytes.h"
#include "kv/digest.h"
#include "tier/store_observer.h"

namespace coppice::events {

class StoredBlocks final : public tier::StoreObserver {
 public:
  struct Options {
    std::size_t block_size = 32;
    kv::HashFn hash = kv::sha256;
    /// Tier::Name::piece of a full group's block.
    std::function<tier::Name(const kv::Digest& digest, const kv::Namespace& ns)> name;
  };
  /// Before a store has it.
  void start(Options options) { options_ = std::move(options); }
  /// There is something to add, where there was nothing. On any thread; throws nothing. Set it before others use it.
  void on_change(std::function<void()> changed) { changed_ = std::move(changed); }

  /// Adds what has come since the last time; to changes that are anew: all.
  void add_to(Changes& changes);

  void entered(tier::StoreKind place, const tier::Name& name, const tier::PieceHead& head) noexcept override;
  void left(tier::StoreKind place, const tier::Name& name) noexcept override;
  void emptied(tier::StoreKind place) noexcept override;

 private:
  struct News {
    enum class Kind : std::uint8_t { kEntered, kLeft, kEmptied } kind;
    Medium medium;
    tier::Name name;
    tier::Name inside;                    ///< kEntered: what the piece says of itself
    std::vector<std::byte> text, origin;  ///< kEntered: of the piece
  };
  struct Block {
    kv::Digest digest{};
    kv::BlockOrigin origin;
    kv::Text text;
  };
  struct HashOfDigest {
    std::size_t operator()(const kv::Digest& digest) const;
  };
  using Blocks = std::unordered_map<tier::Name, Block, tier::HashOfName>;

  void add(News news) noexcept;
  std::optional<Block> read(const News& news) const;
  void apply(const News& news, Changes* changes);
  static void add_block(Medium medium, const Block& block, Changes& changes);
  static void add_all(Medium medium, const Blocks& blocks, Changes& changes);

  Options options_;
  std::function<void()> changed_;
  std::map<Medium, Blocks> blocks_;
  check::Mutex mutex_;
  std::vector<News> news_ COPPICE_GUARDED_BY(mutex_);
  bool lost_ COPPICE_GUARDED_BY(mutex_) = false;  ///< for want of memory: nothing of it is claimed any more
};

}  // namespace coppice::events
