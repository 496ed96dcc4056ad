// The warpgroups that compute: scores, softmax and weighted sums of an item's queries, 64 for a warpgroup.
//
// Registers follow the tensor cores' layout of a 64-row product: a thread holds, of two rows (its first and the eighth after it),
// two neighbouring values in every eight.
#pragma once

#include "attention/cuda/partial_state.cuh"
#include "attention/cuda/slim.cuh"
#include "attention/cuda/tile.cuh"
#include "cuda/group_product.cuh"

namespace coppice::attention::cuda {

template <class T, int D>
struct Computer {
  using Shape = Tile<T, D>;
  static constexpr int kSteps = D / 16;                          ///< products of a score
  static constexpr int kKeySteps = Shape::kTokens / 16;          ///< products of a weighted sum
  static constexpr int kAtOnce = D % 128 == 0 ? 2 : 1;           ///< panels of values in one product
  static constexpr int kParts = Shape::kPanels / kAtOnce;        ///< products that make a row of sums
  static constexpr int kPartSums = kAtOnce * Shape::kPanel / 2;  ///< registers
  using Scores = float[Shape::kTokens / 2];

  const TreeAttention& a;
  Shared<T, D> shared;
  int group, warp, lane;  ///< of the block's two warpgroups; of the group's four warps
  float scale = a.scale * kLog2E;
  std::uint32_t first_stage = 0;  ///< of the item in hand, counted from the launch's first
  std::uint32_t n_done = 0;       ///< warpgroups' shares of units
  std::uint32_t reciprocal = 65536U / static_cast<std::uint32_t>(a.n_head / a.n_kv_head) + 1;
  Turns turns{};
  std::uint32_t join_parity = 0, slim_parity = 0;

  // Of the item in hand.
  ItemHead head{};
  int n_queries = 0;
  bool narrow = false, active = false;  ///< active: this warp has queries
  int half = 0;                         ///< of the queries' memory, for this warpgroup
  int seen = 0;                         ///< Item::seen with this lane's number
  int query[2] = {};
  ItemRow row[2] = {};
  float max[2], sum[2];
  float sums[kParts][kPartSums];
  std::uint32_t q[Shape::kQueriesInRegisters ? kSteps : 1]
                 [4];  ///< as the tensor cores take them, else read at each use

  __device__ int stage_of(int n) const {
    return static_cast<int>((first_stage + static_cast<std::uint32_t>(n)) % Shape::kStages);
  }
  __device__ void wait_for_stage(int n) const {
    shared.full(stage_of(n)).wait((first_stage + static_cast<std::uint32_t>(n)) / Shape::kStages & 1);
  }
  /// itself: each lane has read or stored there; else the tensor cores have, for the whole warp.
  __device__ void release_stage(int n, bool itself) const {
    if (itself) {
      shared.empty(stage_of(n)).arrive();
    } else {
      __syncwarp();
      if (lane == 0) shared.empty(stage_of(n)).arrive_for(32);
    }
  }
  /// Of the item's rows, the one that a query belongs to. Exact below 128.
  __device__ int row_of(int query) const {
    return static_cast<int>(static_cast<std::uint32_t>(query) * reciprocal >> 16);
  }

  __device__ std::uint32_t query_at(int step) const {
    return shared.queries(half) +
           static_cast<std::uint32_t>((warp * 16 + lane % 16) * Shape::kQueryBytes + step * 32 + lane / 16 * 16);
  }

  /// Waits for the next item's queries. False: there are no more.
  __device__ bool next_item() {
    shared.queries_full(turns.turn).wait(turns.parity(turns.turn));
    head = *shared.head(turns.turn);
    if (head.item < 0) return false;
    n_queries = head.n_rows * (a.n_head / a.n_kv_head);
    narrow = n_queries <= kGroupQueries;
    half = narrow ? turns.turn : group;
    if (!narrow) shared.queries_full(turns.turn ^ 1).wait(turns.parity(turns.turn ^ 1));
    return true;
  }

  /// This warp has read the item's queries for the last time.
  __device__ void release_queries() {
    shared.queries_empty(turns.turn).arrive();
    if (!narrow) shared.queries_empty(turns.turn ^ 1).arrive();
    turns.next(narrow);
  }

  __device__ void begin_item() {
    const int first = (narrow ? 0 : group * kGroupQueries) + warp * 16;
    active = first < n_queries;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      query[i] = first + lane / 4 + 8 * i;
      row[i] = {-1, 0, 0, -1};
      if (query[i] < n_queries) {
        const int4 r = *reinterpret_cast<const int4*>(a.rows + head.first_row + row_of(query[i]));
        row[i] = {r.x, r.y, r.z, r.w};
      }
      max[i] = -INFINITY;
      sum[i] = 0.0F;
    }
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (float& x : part) x = 0.0F;
    }
    if constexpr (Shape::kQueriesInRegisters) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) load_matrices(q[step], query_at(step));
      release_queries();
    }
    seen = a.items[head.item].seen[lane];
  }

  /// Whether a stage has slots that nobody sees. A long run has them at its end only.
  __device__ bool is_ragged(int n) const {
    constexpr std::uint32_t kMask = (1U << Shape::kBlocks) - 1;
    const int first_block = n * Shape::kBlocks, in_tail = first_block - tail_of(head.n_blocks);
    return first_block + Shape::kBlocks > head.n_blocks || (in_tail >= 0 && (head.ragged >> in_tail & kMask) != 0);
  }
  /// Of a block's slots.
  __device__ int seen_of(int block) const {
    const int in_tail = block - tail_of(head.n_blocks);
    if (in_tail < 0) return kBlockSize;
    return block < head.n_blocks ? __shfl_sync(~0U, seen, in_tail) : 0;
  }

  /// Slots behind the last that anyone sees may hold anything, NaN too, and weights of 0 would not hide that.
  __device__ void clear_unseen(int n) {
    const int first_block = n * Shape::kBlocks;
    unsigned char* values = shared.values_of(stage_of(n));
    const int threads = narrow ? kGroupThreads : 2 * kGroupThreads;
    const int thread = (narrow ? 0 : group * kGroupThreads) + warp * 32 + lane;
    for (int b = 0; b < Shape::kBlocks; ++b) {
      const int of_block = seen_of(first_block + b);
      clear_slots<T, D>(values, b * kBlockSize + of_block, kBlockSize - of_block, thread, threads);
    }
    fence_stores();
    if (narrow) {
      sync_named(1 + group, kGroupThreads);
    } else {
      sync_named(3, 2 * kGroupThreads);
    }
  }

  /// Keeps the compiler from moving uses of a product's registers to where the tensor cores still write them.
  template <int kN>
  __device__ static void pin(float (&x)[kN]) {
#pragma unroll
    for (float& y : x) asm volatile("" : "+f"(y)::"memory");
  }

  /// The keys' half of a product: columns [16 step, +16) of the stage's keys.
  __device__ static std::uint64_t keys_at(std::uint32_t keys, int step) {
    const int panel = step * 16 / Shape::kPanel, inside = step * 16 % Shape::kPanel;
    return describe<Shape::kPanelRow>(keys + static_cast<std::uint32_t>(panel * Shape::kPanelBytes + inside * 2));
  }

  /// Leaves the products in flight where the queries are in registers.
  __device__ void start_scores(Scores& s, int n) {
    wait_for_stage(n);
    if (is_ragged(n)) clear_unseen(n);
    const std::uint32_t keys = shared.keys(stage_of(n));
    if constexpr (Shape::kQueriesInRegisters) {
      begin_products();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) multiply<T, false>(s, q[step], keys_at(keys, step), step > 0);
      commit_products();
    } else {
#pragma unroll
      for (int first = 0; first < kSteps; first += 4) {
        std::uint32_t part[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) load_matrices(part[i], query_at(first + i));
        begin_products();
#pragma unroll
        for (int i = 0; i < 4; ++i) multiply<T, false>(s, part[i], keys_at(keys, first + i), first + i > 0);
        commit_products();
        wait_for_products();
        pin(s);
      }
    }
  }

  __device__ void mask(Scores& s, int first_token) const {
#pragma unroll
    for (int i = 0; i < Shape::kTokens / 2; ++i) {
      const int token = first_token + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const ItemRow& r = row[i / 2 % 2];
      if (token < r.lo || token >= r.hi) s[i] = -INFINITY;
    }
  }

  /// Scores become weights; sums follow the new maximum.
  __device__ void weigh(Scores& s) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = -INFINITY;
#pragma unroll
      for (int i = 0; i < Shape::kTokens / 8; ++i) m = fmaxf(m, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0U, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0U, m, 2));
      m = fmaxf(max[r], m * scale);
      const float base = m == -INFINITY ? 0.0F : m;
      factor[r] = exp2_fast(max[r] - base);
      max[r] = m;
      float added = 0.0F;
#pragma unroll
      for (int i = 0; i < Shape::kTokens / 8; ++i) {
#pragma unroll
        for (int e = 4 * i + 2 * r; e < 4 * i + 2 * r + 2; ++e) {
          s[e] = exp2_fast(fmaf(s[e], scale, -base));
          added += s[e];
        }
      }
      sum[r] = sum[r] * factor[r] + added;
    }
    if (!__any_sync(~0U, factor[0] != 1.0F || factor[1] != 1.0F)) return;
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (int i = 0; i < kPartSums; ++i) part[i] *= factor[i / 2 % 2];
    }
  }

  __device__ void start_values(const Scores& s, int n) {
    std::uint32_t p[kKeySteps][4];
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[step][i] = pack<T>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
    }
    const std::uint32_t values = shared.values(stage_of(n));
    for (auto& part : sums) pin(part);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const auto offset =
            static_cast<std::uint32_t>(part * kAtOnce * Shape::kPanelBytes + step * 16 * Shape::kPanelRow);
        multiply<T, true>(sums[part], p[step], describe<Shape::kPanelRow, Shape::kPanelBytes>(values + offset), 1);
      }
    }
    commit_products();
  }

  __device__ void skip_stage(int n) const {
    wait_for_stage(n);
    release_stage(n, false);
  }

  /// The item's stage n, whose scores are in `s`. kMore: stage n + stride follows; its scores are on their way into `next` while
  /// this one's softmax is computed.
  template <bool kMore>
  __device__ void compute_stage(Scores& s, Scores& next, int n, int n_stages) {
    if (narrow && n + 1 < n_stages) skip_stage(n + 1);
    if constexpr (kMore) start_scores(next, n + (narrow ? 2 : 1));
    if (active) {
      const int first_token = n * Shape::kTokens;
      if (a.softcap > 0.0F) cap_scores(a, s);
      if (first_token < head.full_lo || first_token + Shape::kTokens > head.full_hi) mask(s, first_token);
      weigh(s);
    }
    start_values(s, n);
    wait_for_products();
    for (auto& part : sums) pin(part);
    if constexpr (kMore) pin(next);
    release_stage(n, is_ragged(n));
  }

  __device__ void compute_item(int n_stages) {
    const int stride = narrow ? 2 : 1;
    int n = narrow ? group : 0;
    if (n == 1) skip_stage(0);
    if (n >= n_stages) return;
    Scores even, odd;
    start_scores(even, n);
    wait_for_products();
    pin(even);
    for (;;) {
      if (n + stride >= n_stages) return compute_stage<false>(even, odd, n, n_stages);
      compute_stage<true>(even, odd, n, n_stages);
      n += stride;
      if (n + stride >= n_stages) return compute_stage<false>(odd, even, n, n_stages);
      compute_stage<true>(odd, even, n, n_stages);
      n += stride;
    }
  }

  /// The second warpgroup hands its states of a narrow item to the first.
  __device__ void join() {
    float* const theirs = shared.join_sums() + warp * 32 + lane;
    float2* const states = shared.join_states() + warp * 16 + lane / 4;
    if (group == 1) {
      shared.slim_empty().wait(slim_parity ^ 1);
      shared.join_empty().wait(join_parity ^ 1);
      if (active) hand_over(max, sum, sums, theirs, kGroupThreads, states, lane);
      shared.join_full().arrive();
    } else {
      shared.join_full().wait(join_parity);
      if (active) take_over(max, sum, sums, theirs, kGroupThreads, states);
      shared.join_empty().arrive();
    }
    join_parity ^= 1;
  }

  __device__ void write() const {
    const int per_row = a.n_head / a.n_kv_head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (query[r] >= n_queries) continue;
      const int h = head.kv_head * per_row + (query[r] - row_of(query[r]) * per_row);
      const bool final = row[r].slot < 0;
      const std::int64_t at =
          (static_cast<std::int64_t>(final ? row[r].row : row[r].slot) * a.n_head + h) * D + lane % 4 * 2;
      const float factor = final ? 1.0F / with_sink(a, h, max[r], sum[r]) : 1.0F;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        const int at_x = 4 * i + 2 * r;
        const float x = sums[at_x / kPartSums][at_x % kPartSums], y = sums[at_x / kPartSums][at_x % kPartSums + 1];
        if (final) {
          *reinterpret_cast<std::uint32_t*>(static_cast<T*>(a.out) + at + 8 * i) = pack<T>(x * factor, y * factor);
        } else {
          *reinterpret_cast<float2*>(a.scratch.sums + at + 8 * i) = {x, y};
        }
      }
      if (!final && lane % 4 == 0) {
        reinterpret_cast<float2*>(a.scratch.states)[static_cast<std::int64_t>(row[r].slot) * a.n_head + h] = {max[r],
                                                                                                              sum[r]};
      }
    }
  }

  __device__ void finish_item(int n_stages) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0U, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0U, sum[r], 2);
    }
    if (narrow && n_stages > 1) join();
    if (active && (!narrow || group == 0)) write();
  }

  /// An item of few queries. The groups take turns at the stages.
  __device__ void compute_slim(int n_stages) {
    // Or the compiler computes what depends on them before the first item, and keeps it in memory.
    int own_warp = warp, own_lane = lane;
    asm volatile("" : "+r"(own_warp), "+r"(own_lane));
    SlimComputer<T, D> slim{a, shared, head, group, own_warp, own_lane, n_queries, scale};
    slim.read_queries(shared.queries(half));
    release_queries();
    shared.join_empty().wait(join_parity ^ 1);  // of a narrow item before this one
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slim.row[i] = {-1, 0, 0, -1};
      if (lane % 4 * 2 + i < n_queries) slim.row[i] = a.rows[head.first_row + row_of(lane % 4 * 2 + i)];
    }
    seen = a.items[head.item].seen[lane];
    for (int n = 0; n < n_stages; ++n) {
      if (n % 2 != group) {
        skip_stage(n);
        continue;
      }
      wait_for_stage(n);
      if (is_ragged(n)) slim.clear_unseen(shared.values_of(stage_of(n)), seen_of(2 * n + warp / 2));
      slim.compute(shared.keys(stage_of(n)), shared.values(stage_of(n)), n * Shape::kTokens);
      release_stage(n, true);
    }
    slim.join_and_write(slim_parity);
    slim_parity ^= 1;
  }

  /// Computes what is fetched, then counts it as done.
  __device__ void run(std::uint32_t* done) {
    while (next_item()) {
      if constexpr (SlimComputer<T, D>::kCan) {
        if (n_queries <= kSlimQueries) {
          const int n_stages = (head.n_blocks + Shape::kBlocks - 1) / Shape::kBlocks;
          compute_slim(n_stages);
          first_stage += static_cast<std::uint32_t>(n_stages);
          ++n_done;
          continue;
        }
      }
      begin_item();
      const int n_stages = (head.n_blocks + Shape::kBlocks - 1) / Shape::kBlocks;
      compute_item(n_stages);
      first_stage += static_cast<std::uint32_t>(n_stages);
      if constexpr (!Shape::kQueriesInRegisters) release_queries();
      finish_item(n_stages);
      n_done += narrow ? (group == 0 ? 2 : 0) : 1;
    }
    sync_named(1 + group, kGroupThreads);
    if (warp == 0 && lane == 0 && n_done > 0) {
      __threadfence();  // for the whole group: the barrier before it orders their stores
      atomicAdd(done, n_done);
    }
  }
};

}  // namespace coppice::attention::cuda
