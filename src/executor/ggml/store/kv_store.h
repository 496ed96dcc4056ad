// KvStore: the tensors of the KV pool. One K and one V tensor per layer slot, seen as rows of slots, where a slot's
// row is n_kv_head heads in one of the KV formats: [n_kv_head * head_dim, n_slots] of f16, or [row_bytes, n_slots] of bytes
// where only our own code knows the format.
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

#include "attention/kv_format.h"
#include "executor/ggml/store/ggml_ptr.h"
#include "executor/ggml/store/pool_memory.h"
#include "executor/ggml/store/progress.h"
#include "kv/types.h"

namespace coppice::executor {

struct KvStoreConfig {
  int n_layer_slots = 0;
  attention::KvFormat format = attention::KvFormat::kF16;
  int n_kv_head = 0;
  int head_dim = 0;  ///< a multiple of 16, at most attention::kMaxRotated, unless the format is f16
  int block_size = 0;
  std::size_t budget_bytes = 0;
  int n_threads = 1;  ///< that take the memory
};

class KvStore {
 public:
  static constexpr int kScratchRows = 64;

  /// Throws model::LoadError when the budget holds fewer than two blocks or memory is refused.
  explicit KvStore(const KvStoreConfig& config, const Progress& progress = {});
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  std::int32_t num_blocks() const { return num_blocks_; }  ///< the null block included, scratch not
  const KvStoreConfig& config() const { return config_; }
  std::size_t row_bytes() const;  ///< of one slot's keys (or values) in one layer
  std::size_t bytes_per_block() const { return 2 * block_bytes() * static_cast<std::size_t>(config_.n_layer_slots); }
  std::size_t block_bytes() const;  ///< of one K (or V) tensor
  kv::Slot scratch_slot(int row) const { return kv::Slot{num_blocks_} * config_.block_size + row; }

  ggml_tensor* k(int layer_slot) const { return k_[static_cast<std::size_t>(layer_slot)]; }
  ggml_tensor* v(int layer_slot) const { return v_[static_cast<std::size_t>(layer_slot)]; }

  /// Runs copies in list order, each over all layer slots.
  /// REQUIRES: ids inside the pool, dst not the null block, 0 <= n_slots <= block_size.
  void copy(std::span<const kv::CopyOp> copies);

 private:
  KvStoreConfig config_;
  std::int32_t num_blocks_ = 0;
  PoolMemory memory_;
  BufferPtr buffer_;
  ContextPtr context_;
  std::vector<ggml_tensor*> k_, v_;
};

}  // namespace coppice::executor
