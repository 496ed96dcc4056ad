// What a thread block of the tree kernel has in shared memory, and who waits for whom there.
//
// Three warpgroups: two compute, and one warp of the third fetches. The fetching warp fills a ring of stages (of four
// blocks of one key head the keys, then the values) and, item by item, the queries; it runs ahead across items. A wide
// item (more than 64 queries) gives each warpgroup 64 queries; in a narrow one both have the same queries, each
// computes with half of a stage's tokens, and their states are joined at the end.
#pragma once

#include "attention/cuda/block_order.h"
#include "attention/cuda/tree_attention.h"
#include "cuda/barrier.cuh"
#include "cuda/warp_product.cuh"

namespace coppice::attention::cuda {

using namespace coppice::cuda;  // the instructions

/// Words of TreeScratch::control: claimed units, but for each thread block's first; and what arrive() counts.
enum ControlWord { kClaimed, kArrived };

inline constexpr int kGroupThreads = 128;  ///< of a warpgroup
inline constexpr int kComputeWarps = 8;
inline constexpr int kThreads = 3 * kGroupThreads;
inline constexpr int kComputeRegisters = 224, kFetchRegisters = 56;  ///< of a thread; the launch gives 168 to each
static_assert(2 * kComputeRegisters + kFetchRegisters <= 3 * 168);   // else they wait for registers for ever
inline constexpr int kGroupQueries = kItemQueries / 2;
/// Named barriers: of a group (two), of both, and of a group's turn (two).
inline constexpr int kOneGroup = 1, kBothGroups = 3, kTurn = 4;
inline constexpr float kLog2E = 1.4426950408889634F;

/// The sum of a row's weights, relative to 2^max, with what the head's sink adds to it.
__device__ inline float with_sink(const TreeAttention& a, int head, float max, float weights) {
  return a.sinks == nullptr ? weights : weights + exp2_fast(fmaf(a.sinks[head], kLog2E, -max));
}

/// Products of queries and keys, for which a.softcap is set, become others, whose scores are the capped ones. By index:
/// a loop over references isn't unrolled in time, so x would lie in memory, and then ptxas lets no product of the
/// kernel overlap with anything (C7514).
template <int kN>
__device__ inline void cap_scores(const TreeAttention& a, float (&x)[kN]) {
  const float to = a.softcap / a.scale, by = 2.0F * kLog2E / to;
#pragma unroll
  for (int i = 0; i < kN; ++i) x[i] = to * (1.0F - __fdividef(2.0F, exp2_fast(by * x[i]) + 1.0F));
}

/// T: a 16-bit number. D: values of a head.
template <class T, int D>
struct Tile {
  static constexpr int kPanel = panel_width(D);
  static constexpr int kPanels = D / kPanel;
  static constexpr int kPanelRow = 2 * kPanel;               ///< bytes
  static constexpr int kBlocks = D > 128 ? 2 : 4;            ///< of a stage
  static constexpr int kTokens = kBlocks * kBlockSize;       ///< of a stage
  static constexpr int kPanelBytes = kTokens * kPanelRow;    ///< of a stage
  static constexpr int kCopyBytes = kBlockSize * kPanelRow;  ///< one block's part of a panel
  static constexpr int kStageBytes = kTokens * D * 2;
  static constexpr bool kHasSlim =
      kTokens == 16 * kComputeWarps;  ///< items of few queries are computed as slim.cuh does
  static constexpr int kQueryBytes = 2 * D;
  static constexpr int kSlimQueryBytes = 2 * D + 16;  ///< 16 more, or ldmatrix meets one bank eight times
  static constexpr int kJoinBytes = kGroupQueries * D * 4 + kGroupQueries * 8;
  static constexpr int kFixedBytes = kItemQueries * kQueryBytes + kJoinBytes + 256;
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kFit = (kMostBytes - kFixedBytes) / kStageBytes;
  static constexpr int kStages = kFit < 8 ? kFit : 8;
  static constexpr int kSharedBytes = kStages * kStageBytes + kFixedBytes;
  static_assert(kStages >= 3 && kSharedBytes <= kMostBytes);
};

/// Zeroes pieces of 16 bytes, `first` and every `stride`-th after it, of n slots of a stage's values from `slot` on.
template <class T, int D>
__device__ inline void clear_slots(unsigned char* values, int slot, int n, int first, int stride) {
  using Shape = Tile<T, D>;
  constexpr int kPieces = D / 8, kInPanel = Shape::kPanel / 8;
  for (int i = first; i < n * kPieces; i += stride) {
    const int piece = i % kPieces;
    *reinterpret_cast<int4*>(values + piece / kInPanel * Shape::kPanelBytes + (slot + i / kPieces) * Shape::kPanelRow +
                             piece % kInPanel * 16) = {};
  }
}

/// By a warp: queries 8 i ... 8 i + 7 came as rows. The tensor cores want their panels one behind the other, swizzled.
template <class T, int D>
__device__ inline void swizzle_queries(unsigned char* queries, int i, unsigned lane) {
  constexpr unsigned kPieces = D, kOfLane = (kPieces + 31) / 32;  // of 16 bytes: of the queries, of a lane
  unsigned char* const rows = queries + i * 8 * Tile<T, D>::kQueryBytes;
  asm volatile(
      ""
      : "+r"(lane));  // or the compiler computes what depends on it before the first item, and keeps it in memory
  int4 x[kOfLane];
#pragma unroll
  for (unsigned k = 0; k < kOfLane; ++k) {
    const unsigned piece = lane + 32 * k;
    if (kPieces % 32 == 0 || piece < kPieces) x[k] = *reinterpret_cast<const int4*>(rows + 16 * piece);
  }
  __syncwarp();
#pragma unroll
  for (unsigned k = 0; k < kOfLane; ++k) {
    const unsigned piece = lane + 32 * k, query = piece / (D / 8), dim = piece % (D / 8) * 8;
    if (kPieces % 32 == 0 || piece < kPieces)
      *reinterpret_cast<int4*>(rows + offset_in_head(D, 8, static_cast<int>(query), static_cast<int>(dim))) = x[k];
  }
  fence_stores();
}

/// What the computing warps must know of an item.
struct ItemHead {
  std::int32_t item;  ///< -1: there are no more
  std::int32_t kv_head;
  std::int32_t first_row, n_rows, n_blocks, full_lo, full_hi;
  std::uint32_t ragged;
};

/// Steps of an item: a stage of keys and one of values each.
template <class Shape>
__device__ inline int n_steps(const ItemHead& head) {
  return (head.n_blocks + Shape::kBlocks - 1) / Shape::kBlocks;
}

/// The block from which on Item::ragged and Item::seen speak.
__device__ inline int tail_of(int n_blocks) {
  return n_blocks > kItemBlocks ? n_blocks - kItemBlocks : 0;
}

/// Addresses in shared memory, in its order.
template <class T, int D>
struct Shared {
  using Shape = Tile<T, D>;
  unsigned char* base;

  __device__ unsigned char* stage(int i) const { return base + i * Shape::kStageBytes; }
  __device__ unsigned char* queries(int half) const {
    return stage(Shape::kStages) + half * kGroupQueries * Shape::kQueryBytes;
  }
  __device__ float* join_sums() const { return reinterpret_cast<float*>(queries(2)); }
  __device__ float2* join_states() const { return reinterpret_cast<float2*>(join_sums() + kGroupQueries * D); }
  __device__ ItemHead* head(int turn) const {
    return reinterpret_cast<ItemHead*>(join_states() + kGroupQueries) + turn;
  }
  __device__ Barrier barrier(int i) const { return {shared_address(head(2)) + 8 * static_cast<std::uint32_t>(i)}; }
  __device__ Barrier queries_full(int half) const { return barrier(half); }
  __device__ Barrier queries_empty(int half) const { return barrier(2 + half); }
  __device__ Barrier join_full() const { return barrier(4); }
  __device__ Barrier join_empty() const { return barrier(5); }
  __device__ Barrier slim_full() const { return barrier(6); }
  __device__ Barrier slim_empty() const { return barrier(7); }
  __device__ Barrier full(int stage) const { return barrier(8 + stage); }
  __device__ Barrier empty(int stage) const { return barrier(8 + Shape::kStages + stage); }

  /// By one thread, before anyone waits.
  __device__ void init() const {
    for (int half = 0; half < 2; ++half) {
      queries_full(half).init(1);
      queries_empty(half).init(32 * kComputeWarps);
    }
    join_full().init(kGroupThreads);
    join_empty().init(kGroupThreads);
    slim_full().init(32 * kComputeWarps);
    slim_empty().init(32 * kComputeWarps);
    for (int s = 0; s < Shape::kStages; ++s) {
      full(s).init(1);
      empty(s).init(32 * kComputeWarps);
    }
    fence_barriers();
  }
};

/// The two halves of the queries' memory. Items take turns: an item's head is in the half whose turn it is, a narrow
/// one's queries too; a wide one uses both halves, one for each warpgroup.
struct Turns {
  int turn = 0;
  std::uint32_t parities = 0;  ///< bit h: of half h
  __device__ std::uint32_t parity(int half) const { return parities >> half & 1; }
  __device__ void next(bool narrow) {
    parities ^= narrow ? 1U << turn : 3U;
    turn ^= 1;
  }
};

/// Counts through the ring of stages.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace coppice::attention::cuda
