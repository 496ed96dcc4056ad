// KvStore: the memory of the KV pool, as pages (page_layout.h). Of each layer the graph sees a K and a V tensor over
// the whole pool, whose rows begin at its place in the first page: [n_kv_head * head_dim, n_rows] of f16, or
// [row_bytes, n_rows] of bytes where only our own code knows the format. Which row is a slot's, KvStore::row() tells.
//
// States (state_layout.h) lie in pages of the same memory.
//
// Owns the memory. Not thread safe; the executor's thread owns it.
//
// Invariants
//  1. The pool starts zeroed. Block 0 is the null block: never written, so it reads as zeros.
//  2. Behind the pool's num_blocks blocks lies a scratch area of kScratchRows slots at least, where padding rows
//     write: each row its own slot (overlapping rows of ggml_set_rows are undefined behaviour). Nobody reads it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "executor/base/page_layout.h"
#include "executor/base/progress.h"
#include "executor/ggml/store/ggml_ptr.h"
#include "executor/ggml/store/pool_memory.h"
#include "kv/types.h"

namespace coppice::executor {

class KvStore {
 public:
  static constexpr int kScratchRows = 64;

  /// n_threads take the memory. Throws model::LoadError when the budget holds fewer than two blocks or memory is
  /// refused.
  KvStore(PageLayout layout, std::size_t budget_bytes, int n_threads = 1, const Progress& progress = {});
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  std::int32_t num_blocks() const { return num_blocks_; }  ///< the null block included, scratch not
  const PageLayout& layout() const { return layout_; }

  /// What lies at a place of a state's pages.
  float* state(std::span<const kv::BlockId> pages, const StateLayout::PageOffset& place) const {
    const auto page = static_cast<std::size_t>(pages[static_cast<std::size_t>(place.page)]);
    return reinterpret_cast<float*>(memory_.data() + page * layout_.page_bytes + place.offset);
  }

  /// A layer's keys and values. REQUIRES: it keeps some.
  ggml_tensor* k(int layer) const { return k_[static_cast<std::size_t>(layer)]; }
  ggml_tensor* v(int layer) const { return v_[static_cast<std::size_t>(layer)]; }

  /// The rows of k() and v(), in all layers of a group, that hold a position, and that padding row i writes to.
  std::int64_t row(std::size_t group, const kv::TableView& table, std::int64_t position) const {
    return row_of(group, table.blocks[static_cast<std::size_t>(position / layout_.block_size)],
                  position % layout_.block_size);
  }
  std::int64_t scratch_row(std::size_t group, int i) const {
    return row_of(group, num_blocks_ + i / layout_.block_size, i % layout_.block_size);
  }

  /// Runs block operations in list order, each over all layers of its group. outside: Batch's.
  /// REQUIRES: check_batch() has seen them.
  void run(std::span<const kv::BlockOp> ops, std::span<const std::span<std::byte>> outside = {});

  /// What a block of a group takes outside of the pool, or a page of a state: the first so many bytes of its page.
  std::size_t outside_bytes(std::size_t group) const {
    const kv::GroupSpec& g = layout_.groups[group];
    if (g.kind == kv::GroupKind::kRecurrent) return layout_.page_bytes;
    return g.bytes_per_token * static_cast<std::size_t>(layout_.block_size);
  }

 private:
  /// How many rows lie from one block to the next, and from one slot to the next: 1, unless pages are no whole number
  /// of rows.
  struct Steps {
    std::int64_t block, slot;
  };

  std::int64_t row_of(std::size_t group, std::int64_t block, std::int64_t slot) const {
    return block * steps_[group].block + slot * steps_[group].slot;
  }
  void add_tensors(const PageLayout::Layer& layer);
  void copy(const kv::BlockOp& op);
  std::byte* page(kv::BlockId id) const { return memory_.data() + static_cast<std::size_t>(id) * layout_.page_bytes; }

  PageLayout layout_;
  std::vector<Steps> steps_;  ///< [groups that have tables]
  std::int32_t num_blocks_ = 0;
  PoolMemory memory_;
  BufferPtr buffer_;
  ContextPtr context_;
  std::vector<ggml_tensor*> k_, v_;  ///< [layers]
};

}  // namespace coppice::executor
