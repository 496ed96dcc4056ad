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
  /// What the lanes hold of an item: its head, first block ids, and rows lane, lane + 32, ...
  struct Ahead {
    int unit = 0, word = 0, block = 0;
    int row[kItemQueries / 32] = {};
  };
  Ring<Shape::kStages> ring{};
  Turns turns{};
  int per_row = a.n_head / a.n_kv_head;  ///< queries
  int n_units = 0;                       ///< items, for each key head
  Ahead ahead{};                         ///< the item in hand

  __device__ int claim() const { return lane == 0 ? static_cast<int>(atomicAdd(a.scratch.control + kClaimed, 1U)) : 0; }

  /// The keys, or values, of n blocks whose ids the lanes hold from `first` on.
  __device__ void fetch_stage(const std::byte* of_layer, int block, int first, int n, int kv_head) {
    shared.empty(ring.stage).wait(ring.parity ^ 1);
    const Barrier full = shared.full(ring.stage);
    if (lane == 0) full.arrive_expecting(n * D * 2 * kBlockSize);
    __syncwarp();
    const int b = lane % n, panel = lane / n;  // one copy a lane: a block's part of a panel
    const int id = __shfl_sync(~0U, block, first + b);
    if (panel < Shape::kPanels) {
      const std::byte* from =
          of_layer + id * a.block_bytes + kv_head * (kBlockSize * D * 2) + panel * Shape::kCopyBytes;
      bulk_copy(shared_address(shared.stage(ring.stage) + panel * Shape::kPanelBytes + b * Shape::kCopyBytes), from,
                Shape::kCopyBytes, full);
    }
    ring.next();
  }

  __device__ void look_at(Ahead& at, int unit) const {
    const Item* item = a.items + unit / a.n_kv_head;
    at.unit = unit;
    at.word = lane < 8 ? reinterpret_cast<const std::int32_t*>(item)[lane] : 0;
    at.block = item->blocks[lane];
  }
  __device__ void look_at_rows(Ahead& at) const {
    const int first_row = __shfl_sync(~0U, at.word, 0), n = __shfl_sync(~0U, at.word, 1);
#pragma unroll
    for (int i = 0; i < kItemQueries / 32; ++i) {
      if (lane + 32 * i < n) at.row[i] = a.rows[first_row + lane + 32 * i].row;
    }
  }

  /// Before the barriers are ready: begins to read the first item, for the plan is older than the launch before.
  __device__ void look_ahead() {
    look_at(ahead, static_cast<int>(blockIdx.x));
    n_units = a.counts->items * a.n_kv_head;
  }

  /// Brings the first step's blocks into L2, where what the launch before may still store to them is seen. More of them
  /// would delay the copies behind them.
  __device__ void prefetch_step() const {
    constexpr int kHeadBytes = kBlockSize * D * 2;
    if (lane >= min(Shape::kBlocks, __shfl_sync(~0U, ahead.word, 2))) return;
    const std::int64_t at = ahead.block * a.block_bytes + ahead.unit % a.n_kv_head * kHeadBytes;
    bulk_prefetch(a.keys + at, kHeadBytes);
    bulk_prefetch(a.values + at, kHeadBytes);
  }

  __device__ void fetch_queries(const ItemHead& head) {
    const int n = head.n_rows * per_row;
    const bool narrow = n <= kGroupQueries;
    const int turn = turns.turn;
    shared.queries_empty(turn).wait(turns.parity(turn) ^ 1);
    if (!narrow) shared.queries_empty(turn ^ 1).wait(turns.parity(turn ^ 1) ^ 1);
    const Barrier full = shared.queries_full(turn);
    if (lane == 0) {
      *shared.head(turn) = head;
      full.arrive_expecting(n * 2 * D);
      if (!narrow) shared.queries_full(turn ^ 1).arrive();
    }
    __syncwarp();
    unsigned char* const to = shared.queries(narrow ? turn : 0);
    const auto query_of = [&](int row) {  // a row's first
      return static_cast<const T*>(a.q) + (static_cast<std::int64_t>(row) * a.n_head + head.kv_head * per_row) * D;
    };
    if (Shape::kHasSlim && n <= kSlimQueries) {
      const int row = __shfl_sync(~0U, ahead.row[0], lane / per_row);
      if (lane < n) {
        bulk_copy(shared_address(to + lane * Shape::kSlimQueryBytes), query_of(row) + lane % per_row * D, 2 * D, full);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kItemQueries / 32; ++i) {
        const int at = lane + 32 * i;
        if (at >= head.n_rows) continue;
        bulk_copy(shared_address(to + at * per_row * Shape::kQueryBytes), query_of(ahead.row[i]), per_row * 2 * D,
                  full);
      }
    }
    turns.next(narrow);
  }

  /// Units are taken in order: the thread block's number first, then whatever is next. The next one is claimed four
  /// stages before the end of the one in hand: later, and the ring runs dry while claim, item and rows are read;
  /// earlier, and units wait here that another thread block could begin.
  __device__ void run() {
    if (ahead.unit < n_units) {
      look_at_rows(ahead);
      if (a.early) prefetch_step();
    }
    wait_for_launch_before();
    while (ahead.unit < n_units) {
      const auto word = [&](int i) { return __shfl_sync(~0U, ahead.word, i); };
      const ItemHead head = {
          ahead.unit / a.n_kv_head,           ahead.unit % a.n_kv_head, word(0), word(1), word(2), word(3), word(4),
          static_cast<std::uint32_t>(word(5))};
      const Item* more = a.items + word(6);
      const int n_stages = 2 * n_steps<Shape>(head), when = max(0, n_stages - 5);
      int block = ahead.block, next_block = 0;
      Ahead later;
      int claimed = 0;
      const auto prepare = [&](int step) {
        if (step == 0 && n_units > static_cast<int>(gridDim.x)) claimed = claim();  // else there is none
        if (step == 1) {
          later.unit = static_cast<int>(gridDim.x) + __shfl_sync(~0U, claimed, 0);
          if (later.unit < n_units) look_at(later, later.unit);
        }
        if (step == 2 && later.unit < n_units) look_at_rows(later);
      };
      for (int n = 0; n < n_stages; ++n) {
        const int first = n / 2 * Shape::kBlocks, in_list = first % kItemBlocks;
        if (n % 2 == 0 && in_list == 0) {
          if (n > 0) block = next_block;
          if (first + kItemBlocks < head.n_blocks) next_block = more[first / kItemBlocks].blocks[lane];
        }
        fetch_stage(n % 2 == 0 ? a.keys : a.values, block, in_list, min(Shape::kBlocks, head.n_blocks - first),
                    head.kv_head);
        if (n == 0) fetch_queries(head);
        prepare(n - when);
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
