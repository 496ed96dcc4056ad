// Attention of a step over a tree of runs on an NVIDIA GPU (8.0 or newer; best on Hopper): decodes, chunks of prefill
// and both, every sharing group read once for all of its rows (host plan: tree_plan.h). One launch: a persistent grid
// takes items from a counter, and merges the partial states when all are there. It reads all counts from device memory,
// so a captured launch serves every plan that fits its arrays.
//
// The way of computing is FlashAttention's (Dao et al. 2022; 3: Shah et al. 2024) over items as in PAT (ASPLOS 2026)
// and FlashInfer; states are {sum of weighted values, maximum, sum of weights} with logarithms to base 2.
//
// Plain pointers and numbers. Deterministic: the same arguments and memory give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/cuda/tree_plan.h"
#include "cuda/gpu.h"

namespace coppice::attention::cuda {

enum class Number : std::uint8_t { kBf16, kF16 };

/// How many of a plan's items and rows to merge are valid. In device memory.
struct TreeCounts {
  std::int32_t items = 0;
  std::int32_t merge_rows = 0;
};

/// Device memory that launches share one after the other. `control`: zeroed once, when allocated; launches keep it in
/// order.
struct TreeScratch {
  float* sums = nullptr;             ///< [limits.slots][n_head][head_dim]
  float* states = nullptr;           ///< [limits.slots][n_head][2]: maximum (base 2, scaled), sum of weights
  std::uint32_t* control = nullptr;  ///< [kControlWords]
};
inline constexpr int kControlWords = 2;

/// All pointers are to device memory, 16-byte aligned.
struct TreeAttention {
  Number number = Number::kBf16;  ///< of q, out and, but for `bytes`, keys and values
  bool bytes = false;             ///< keys and values are signed bytes with scales: the int8 order of block_order.h
  bool plain = false;             ///< use the kernel for GPUs without wgmma, whatever this one has
  bool early = true;              ///< it may begin before the launch in front of it has ended; it waits for that itself
  int head_dim = 128;             ///< 64, 80, 96, 128 or 256
  int n_head = 32, n_kv_head = 8;
  float scale = 1.0F;            ///< scores are scale * (q . k)
  float softcap = 0.0F;          ///< c: scores become c * tanh(score / c); 0: they don't
  const float* sinks = nullptr;  ///< [n_head] scores that weigh in each row's softmax and have no value; nullptr: none
  const void* q = nullptr;       ///< [rows][n_head][head_dim]
  void* out = nullptr;           ///< as q
  const std::byte* keys = nullptr;  ///< of one layer; block b begins at b * block_bytes, in the order of block_order.h
  const std::byte* values = nullptr;
  std::int64_t block_bytes = 0;  ///< a multiple of 16
  const TreeCounts* counts = nullptr;
  const Item* items = nullptr;  ///< the arrays of a TreePlan
  const ItemRow* rows = nullptr;
  const MergeRow* merge_rows = nullptr;
  TreeScratch scratch;
};

/// Whether such blocks take the kernel that needs no wgmma on a GPU; a plan is cut by its costs then
/// (TreeCost::use_plain_kernel).
bool takes_plain_kernel(const coppice::cuda::Gpu& gpu, bool bytes);

/// nullptr or why not.
/// n_workers: thread blocks; at most as many as run at once, one for each multiprocessor (TreeCost::n_workers): they
/// wait for each other before they merge. For the same reason two such launches must not run on one GPU at the same
/// time. REQUIRES: n_head / n_kv_head <= kItemQueries; scale > 0; `items` has memory for n_workers / n_kv_head + 1
/// items at least, valid or not.
const char* launch_tree_attention(const TreeAttention& args, int n_workers, const coppice::cuda::Gpu& gpu);

}  // namespace coppice::attention::cuda
