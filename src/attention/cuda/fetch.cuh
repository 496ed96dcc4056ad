// The warp that fetches: claims items, and keeps the ring of stages and the queries filled.
#pragma once

#include "attention/cuda/tile.cuh"
#include "cuda/launch.cuh"

namespace coppice::attention::cuda {

template <class T, int D>
struct Fetcher {
  using Shape = Tile<T, D>;
  const TreeAttention& a;
  Shared<T, D> shared;
  int lane;
  Ring<Shape::kStages> ring{};
  Turns turns{};
  int per_row = a.n_head / a.n_kv_head;  ///< queries

  __device__ int claim() const { return lane == 0 ? static_cast<int>(atomicAdd(a.scratch.control + kClaimed, 1U)) : 0; }

  /// n blocks, whose ids the lanes hold from `first` on.
  __device__ void fetch_stage(int block, int first, int n, int kv_head) {
    shared.empty(ring.stage).wait(ring.parity ^ 1);
    const Barrier full = shared.full(ring.stage);
    if (lane == 0) full.arrive_expecting(n * 2 * D * 2 * kBlockSize);
    __syncwarp();
    const int b = lane % n, part = lane / n;  // one copy a lane: a block's part of a panel of the keys or of the values
    const int id = __shfl_sync(~0U, block, first + b);
    if (part < 2 * Shape::kPanels) {
      const bool is_value = part >= Shape::kPanels;
      const int panel = is_value ? part - Shape::kPanels : part;
      const std::byte* from = (is_value ? a.values : a.keys) + id * a.block_bytes + kv_head * (kBlockSize * D * 2) +
                              panel * Shape::kCopyBytes;
      const std::uint32_t to = (is_value ? shared.values(ring.stage) : shared.keys(ring.stage)) +
                               static_cast<std::uint32_t>(panel * Shape::kPanelBytes + b * Shape::kCopyBytes);
      bulk_copy(to, from, Shape::kCopyBytes, full);
    }
    ring.next();
  }

  /// What the lanes hold of an item: its head, first block ids, and the rows of queries lane, lane + 32, ...
  struct Ahead {
    int unit = 0, word = 0, block = 0;
    int row[kItemQueries / 32] = {};
  };
  __device__ void look_at(Ahead& ahead, int unit) const {
    const Item* item = a.items + unit / a.n_kv_head;
    ahead.unit = unit;
    ahead.word = lane < 8 ? reinterpret_cast<const std::int32_t*>(item)[lane] : 0;
    ahead.block = item->blocks[lane];
  }
  __device__ void look_at_rows(Ahead& ahead) const {
    const int first_row = __shfl_sync(~0U, ahead.word, 0), n = __shfl_sync(~0U, ahead.word, 1) * per_row;
#pragma unroll
    for (int i = 0; i < kItemQueries / 32; ++i) {
      if (lane + 32 * i < n) ahead.row[i] = a.rows[first_row + (lane + 32 * i) / per_row].row;
    }
  }

  __device__ void fetch_queries(const ItemHead& head, const Ahead& ahead) {
    const int n = head.n_rows * per_row;
    const bool narrow = n <= kGroupQueries;
    const int turn = turns.turn;
    shared.queries_empty(turn).wait(turns.parity(turn) ^ 1);
    if (!narrow) shared.queries_empty(turn ^ 1).wait(turns.parity(turn ^ 1) ^ 1);
    if (lane == 0) {
      *shared.head(turn) = head;
      if (narrow) {
        shared.queries_full(turn).arrive_expecting(n * 2 * D);
      } else {
        shared.queries_full(0).arrive_expecting(kGroupQueries * 2 * D);
        shared.queries_full(1).arrive_expecting((n - kGroupQueries) * 2 * D);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kItemQueries / 32; ++i) {
      const int query = lane + 32 * i, half = narrow ? turn : query / kGroupQueries;
      if (query >= n) continue;
      const T* from =
          static_cast<const T*>(a.q) +
          (static_cast<std::int64_t>(ahead.row[i]) * a.n_head + head.kv_head * per_row + query % per_row) * D;
      bulk_copy(shared.queries(half) + static_cast<std::uint32_t>(query % kGroupQueries * Shape::kQueryBytes), from,
                2 * D, shared.queries_full(half));
    }
    turns.next(narrow);
  }

  /// Units are taken in order: the thread block's number first, then whatever is next. The next one is claimed four stages before
  /// the end of the one in hand: later, and the ring runs dry while claim, item and rows are read; earlier, and units wait here that
  /// another thread block could begin.
  __device__ void run() {
    Ahead ahead;
    look_at(ahead, static_cast<int>(blockIdx.x));  // the plan is older than the launch before
    const int n_units = a.counts->items * a.n_kv_head;
    if (ahead.unit < n_units) look_at_rows(ahead);
    wait_for_launch_before();
    for (bool is_first = true; ahead.unit < n_units; is_first = false) {
      const auto word = [&](int i) { return __shfl_sync(~0U, ahead.word, i); };
      const ItemHead head = {
          ahead.unit / a.n_kv_head,           ahead.unit % a.n_kv_head, word(0), word(1), word(2), word(3), word(4),
          static_cast<std::uint32_t>(word(5))};
      const int n_stages = (head.n_blocks + Shape::kBlocks - 1) / Shape::kBlocks, when = max(0, n_stages - 4);
      if (!is_first) fetch_queries(head, ahead);
      const Item* more = a.items + word(6);
      int block = ahead.block, next_block = 0;
      Ahead later;
      int claimed = 0;
      const auto prepare = [&](int step) {
        if (step == 0) claimed = claim();
        if (step == 1) {
          later.unit = static_cast<int>(gridDim.x) + __shfl_sync(~0U, claimed, 0);
          if (later.unit < n_units) look_at(later, later.unit);
        }
        if (step == 2 && later.unit < n_units) look_at_rows(later);
      };
      for (int n = 0; n < n_stages; ++n) {
        prepare(n - when);
        const int first = n * Shape::kBlocks, in_list = first % kItemBlocks;
        if (in_list == 0) {
          if (n > 0) block = next_block;
          if (first + kItemBlocks < head.n_blocks) next_block = more[first / kItemBlocks].blocks[lane];
        }
        fetch_stage(block, in_list, min(Shape::kBlocks, head.n_blocks - first), head.kv_head);
        if (is_first && n == 0) fetch_queries(head, ahead);
      }
      for (int step = n_stages - when; step < 3; ++step) prepare(step);
      ahead = later;
    }
    const int turn = turns.turn;
    shared.queries_empty(turn).wait(turns.parity(turn) ^ 1);
    if (lane == 0) {
      shared.head(turn)->item = -1;
      shared.queries_full(turn).arrive();
    }
  }
};

}  // namespace coppice::attention::cuda
