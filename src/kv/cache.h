// Cache: the one door to the unified KV cache. It moves ids and counts, never bytes: a fork is a BlockOp for the next
// step. Not thread safe; the engine's thread owns it.
//
// A sequence's life
//   admit    match the prompt in the tree, take references on what matched, reserve blocks for the rest
//   extend   give it slots for more tokens, known or not, and fork a shared tail block; the caller's step runs the
//            operations and writes
//   publish  the step is done: its tokens count as computed, full blocks enter the tree, windows move
//   rewind   some of the tokens were guesses, and wrong: it goes on before these
//   finish   the partial tail enters the tree, every reference is dropped; what the tree holds stays, cached
//
// Lengths of a sequence: cached_len <= computed_len <= len.
//   cached_len    tokens found in the tree at admission
//   computed_len  tokens whose keys and values are in the pool
//   len           tokens that have a slot: those behind computed_len are of steps that are planned or run
//
// Units: lengths and positions are in tokens (symbols of a Text), from 0; all else is counted in blocks, unless a name
// says bytes. Groups are indices into CacheConfig::groups; only those that have tables have a table(). REQUIRES, of
// each call: a SeqId is of a sequence between admit() or fork() and finish() or abandon(), a PinId of a pin before
// unpin().
//
// A sequence may be extended again before its last step is published, so that a device always has a step to run. Steps
// run in the order in which they were planned, each with its block operations first. So a block that is let go of while
// a step reads it is written by a later one only, and needs no fence.
//
// Who holds which tokens of a sequence in group g (bs = block size; W = window of g, or infinity), and who frees them
//   [0, computed_len - W)      nobody: null block. What the last token didn't see: of chunks, what lies before its own.
//                              The tree may still hold it, cached, until it is evicted
//   [.., published)            sequence + tree; published = computed_len rounded down to bs. Freed by eviction, after
//                              the last sequence let go
//   [published, computed_len)  the sequence; after fork() other sequences too; and the tree if the match ended inside
//                              this block. The first writer forks. Freed with its last holder
//   [computed_len, len)        the sequence alone: steps in hand write it. Freed by rewind(), finish() and abandon().
//                              What they still write then is garbage behind the tokens of a kept tail, or in free
//                              blocks
//   its state (state_table.h)  the sequence, which may write it in place; and those it was kept for: the tree, forks,
//                              pins
//   reserved, no block yet     nobody: counted against free + cached. Given back by finish() and abandon(), restored by
//                              rewind()
//
// When memory runs out (std::bad_alloc):
//   admit, fork, pin, keep_state, share_tail  nothing has changed
//   extend, publish, await, arrived           this sequence can only be ended; all others are as they were
//   rewind, finish, abandon, unpin            never throw; finish() may not keep the partial tail
//   clear                                     what it has thrown out so far is gone
//
// Invariants (check_integrity() recomputes all of them from the holders)
//  1. A block's count = references of sequences' tables and states + of the tree + of pins. It is free exactly at 0.
//  2. total = free + cached + in_use. The null block is none of them.
//  3. The sum of reservations <= free + cached: a reserved block can always be had.
//  4. cached_len <= computed_len <= len; every position that a query at computed_len or behind it sees has a block.
//  5. A block that holds positions in [computed_len, len) of a sequence has that one holder. So only the oldest step of
//     a sequence that is not published can have forked its tail.
//  6. The table's full-group blocks below `published` are the tree's blocks, node by node.
//  7. A group's eviction order holds exactly the blocks that only the tree holds. The coldest of the full group ends a
//     leaf.
//  8. Groups with one window are alike (a model has several where its sliding layers don't fit into a page): a position
//     has blocks in all of them or in none, in tables and in the tree, with the same users.
//  9. pin_table.h's, state_table.h's and state_keeper.h's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/cache_config.h"
#include "kv/cache_sequence.h"
#include "kv/digest.h"
#include "kv/explain.h"
#include "kv/pin_table.h"
#include "kv/storable.h"
#include "kv/text.h"
#include "kv/tree_observer.h"
#include "kv/tree_picture.h"
#include "kv/types.h"

namespace coppice::kv {

/// Of a sequence, as above.
struct Lengths {
  std::int32_t cached_len = 0;
  std::int32_t computed_len = 0;
  std::int32_t len = 0;
};

struct AdmitRequest {
  TextView prompt;  ///< at least one token; all of each medium that can't be cut
  Namespace ns;
  int n_samples = 1;  ///< at least 1; one growth block and one fork block is reserved for each
  std::size_t most_cached = std::numeric_limits<std::size_t>::max();  ///< tokens that may come from the tree
  std::int64_t keep_free = 0;  ///< blocks that must stay to be had by those who run already
};

/// What of a prompt is in the tree.
struct Overlap {
  std::int32_t cached = 0;  ///< what match() says, in tokens
  std::int32_t in_use = 0;  ///< those of them in blocks that sequences hold
};

/// Why admit() took nothing. `needed` blocks over `available` (free + cached - reserved - keep_free).
struct NoRoom {
  std::int64_t needed = 0;
  std::int64_t available = 0;
  bool never = false;  ///< more than the pool has: waiting won't help
};

/// extend() needs more blocks than are free, can be evicted and aren't promised to others: preempt somebody, or wait.
struct OutOfBlocks {};

/// Figures, as defined in docs/api.md "Figures". Blocks, bytes, pins, nodes and sequences are now, but bytes_peak;
/// cow_forks, evictions and reused are sums since start.
struct CacheStats {
  int block_size = 0;  ///< tokens
  std::int64_t total = 0, free = 0, in_use = 0, cached = 0;
  std::int64_t shared = 0;    ///< held by two sequences or pins, or more
  std::int64_t max_refs = 0;  ///< most sequences and pins on one block
  std::int64_t spared = 0;    ///< more that there would have to be if no two held the same
  std::int64_t reserved = 0;
  std::int64_t pinned = 0, pins = 0;  ///< of in_use: blocks that pins hold; and the pins
  /// Of recurrent layers: blocks that one state takes (0: there are none), and how many states are in use and cached.
  /// Theirs are in all figures of blocks.
  std::int64_t state_pages = 0, states_in_use = 0, states_cached = 0;
  std::size_t bytes_budget = 0, bytes_in_use = 0, bytes_peak = 0;
  std::int64_t cow_forks = 0, evictions = 0;
  std::int64_t reused = 0;  ///< blocks that sequences took from the tree when they began
  std::int64_t tree_nodes = 0;
  std::int64_t sequences = 0;
};

/// The states that a sequence's step in hand reads and writes: [state_pages] each, perhaps the same. `in` stands at
/// computed_len and is empty at 0.
struct StatePages {
  std::span<const BlockId> in, out;
};

class Cache {
 public:
  /// Throws std::invalid_argument when the config makes no sense.
  explicit Cache(CacheConfig config);
  ~Cache();
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;

  const CacheConfig& config() const;

  /// The longest prefix of `tokens` in the tree that a sequence can start on, in tokens. Changes nothing, compares
  /// symbols and whole digests of media, never hashes. Media that can't be cut match whole or not at all.
  std::int32_t match(TextView tokens, const Namespace& ns) const;
  /// match(), and how much of that sequences hold.
  Overlap overlap(TextView tokens, const Namespace& ns) const;

  /// The full group's ids of the whole blocks at the beginning of `tokens` that the tree has: who begins with a pin's
  /// tokens has its last block there, at its place.
  std::vector<BlockId> whole_blocks(TextView tokens, const Namespace& ns) const;

  /// match(), and why it ends there. For people: it hashes and allocates.
  MatchEnd explain(TextView tokens, const Namespace& ns) const;

  // For people.
  /// The tree of a namespace, as far as the limits go. Allocates.
  TreePicture picture(const Namespace& ns, const PictureLimits& limits) const;
  /// The number of the node that a sequence's last published block is in, as pictures have it; 0: none.
  std::uint64_t stands_on(SeqId seq) const;
  /// What the clock says now, in seconds since any moment: ages in pictures count from these.
  void set_time(double seconds);

  /// Blocks that a request of this prompt needs at the very least, with nothing cached and nobody else about.
  std::int64_t blocks_needed(std::int32_t prompt_len, int n_samples) const;

  /// Starts a sequence on the longest cached prefix, capped at prompt length - 1 (the last token's logits are needed)
  /// and at most_cached. The caller extends it with prompt[cached_len, ...). Copies nothing.
  std::expected<SeqId, NoRoom> admit(const AdmitRequest& request);

  /// Gives `n` more tokens a slot, evicting cold blocks as needed, and adds the forks to `ops`. What the tokens are
  /// need not be known. On OutOfBlocks nothing has changed. `draft`: of a model with recurrent layers rewind() may take
  /// the step back; it takes a state's blocks more, which come back with publish() or rewind(). REQUIRES: len + n -
  /// computed_len <= max_extend; with recurrent layers len == computed_len. The prompt may be cut at len + n.
  std::expected<void, OutOfBlocks> extend(SeqId seq, std::int32_t n, std::vector<BlockOp>& ops, bool draft = false);

  /// The step that wrote the next slots is done, and these tokens are in them: they count as computed, full blocks
  /// enter the tree (a block that the tree has already is merged: the table is repointed to the tree's), blocks that
  /// left a window are dropped. What of the step's rows was a guess and isn't accepted is left out, perhaps all, and
  /// taken back by rewind(). REQUIRES: tokens.size() <= len - computed_len; with recurrent layers: all of them or none.
  /// They end where the prompt may be cut.
  void publish(SeqId seq, TextView tokens);

  /// Takes slots back: the next tokens get theirs at `len`. Blocks behind it are free again, and promised again as far
  /// as they were. What steps in hand write there is garbage that nobody reads, like what finish() leaves. A step that
  /// is wholly taken back before it was published is not published any more. REQUIRES: computed_len <= len <= the
  /// sequence's len; the prompt may be cut there. Down to computed_len: the oldest step was published, perhaps without
  /// tokens, or has not forked the tail. With recurrent layers: len == computed_len, and the step is a draft.
  void rewind(SeqId seq, std::int32_t len);

  /// Gives the next tokens, up to `len`, blocks that loads are to fill (BlockOp::kLoad): all of table(seq, 0) behind
  /// what is computed, of other groups those that aren't null, and state().out. False, and nothing has changed: there
  /// are too few. What doesn't come is taken back by rewind(), down to computed_len. REQUIRES: len == computed_len;
  /// both are whole blocks, and the prompt may be cut at the new one. Sharing is on.
  bool await(SeqId seq, std::int32_t len);
  /// These tokens have come: they count as computed, like published ones.
  /// REQUIRES: the sequence awaits them; whole blocks; all that it awaits, if there are windows or states.
  void arrived(SeqId seq, TextView tokens);

  // What is kept outside of the pool (storable.h).
  const Storables& storables() const;
  /// Blocks of the tree, or all pages of a state, are kept outside, or are not any more. What is not in the tree is
  /// left out.
  void set_stored(std::span<const BlockId> pages, bool stored);
  /// The same of the state at the end of this full block, if one stands there.
  void set_state_stored(BlockId anchor);
  /// Whether it is marked so.
  bool stored(BlockId page) const;
  void forget_stored();  ///< nothing is kept outside any more
  /// `f` is told what is evicted for room and isn't marked as stored, just before its blocks are given to others: they
  /// keep their bytes until the next step's operations have run. It throws nothing, and changes nothing here. Null:
  /// nobody is told.
  void on_eviction(OnStorable f);

  /// Who is told of full blocks that enter the tree and leave it; null: nobody. It outlives the cache.
  void observe(TreeObserver* observer);
  /// Tells the observer of all that the tree has, if it wants that: O(tree). Else it costs nothing. What is thrown
  /// (std::bad_alloc) leaves it told of a part.
  void tell_all() const;

  /// A second sequence on the same tokens and blocks: samples of one prompt. Copies nothing; takes over one growth and
  /// one fork block of the reservation (beyond n_samples: none is left, and extend() may run out).
  /// REQUIRES: len == computed_len.
  SeqId fork(SeqId seq);

  /// Ends a sequence, whatever its steps in hand are at, or came to: its computed tokens stay in the tree, the partial
  /// tail included if that can't be the target of a copy that never runs. Also the way to preempt: a later admit() of
  /// the same tokens finds them.
  void finish(SeqId seq);

  /// Ends a sequence without its partial tail: only what was published stays.
  void abandon(SeqId seq);

  /// Keeps what is cached of a prefix from eviction until unpin(), whole blocks of it.
  std::expected<Pinned, NoPin> pin(const PinRequest& request);
  /// Its blocks stay cached until they are evicted.
  void unpin(PinId pin);

  /// Throws out all that nobody holds.
  Cleared clear();

  // Views are valid until the sequence, or the pin, changes or ends.
  Lengths lengths(SeqId seq) const;
  TextView tokens(SeqId seq) const;             ///< [computed_len]
  TableView table(SeqId seq, int group) const;  ///< covers [0, len)
  TableView table(PinId pin, int group) const;  ///< covers the pinned tokens
  std::int32_t reserved(SeqId seq) const;       ///< blocks that are promised to it
  /// Blocks that it holds, and that are promised to it; of one with several users its part. Of long tables an estimate:
  /// O(groups).
  double held(SeqId seq) const;

  // States of recurrent layers (state_keeper.h says which are kept). Without such layers: empty, none, 0, and nothing
  // happens.
  StatePages state(SeqId seq) const;
  std::span<const BlockId> state(PinId pin) const;  ///< [state_pages], or empty
  /// The position behind len where a step's tokens have to end for the next kept state; the largest int32: nowhere.
  std::int32_t next_state(SeqId seq) const;
  /// The last whole block before `position` shall have a state, if the sequence comes there.
  void keep_state(SeqId seq, std::int32_t position);
  std::int32_t state_to_take(SeqId seq) const;  ///< blocks of the next extend() that are for a state

  /// Others wait for the sequence's tokens up to here, inside of a block: once they are computed, and nothing behind
  /// them is planned, the tree gets them, if there is room for the fork that the sequence then writes. Of a whole
  /// block, or without sharing: nothing happens.
  void share_tail(SeqId seq, std::int32_t position);
  /// Where a step's tokens have to end, for that or for next_state(): len, as long as such a tail is in a step in hand,
  /// or behind it.
  std::int32_t next_stop(SeqId seq) const;

  CacheStats stats() const;

  /// Recomputes every count from its holders and checks the invariants above. Returns the first violation in words, or
  /// an empty string. O(pool + tree): tests call it after each step, --check-every every so many.
  std::string check_integrity() const;

  /// The tree as text, one node a line: for people and for tests' failure messages.
  std::string dump() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::kv
