// The warpgroups that compute: scores, softmax and weighted sums of an item's queries, 64 for a warpgroup.
//
// Registers follow the tensor cores' layout of a 64-row product: a thread holds, of two rows (its first and the eighth
// after it), two neighbouring values in every eight.
#pragma once

#include "attention/cuda/partial_state.cuh"
#include "attention/cuda/slim.cuh"
#include "attention/cuda/softmax.cuh"
#include "attention/cuda/tile.cuh"
#include "cuda/group_product.cuh"

namespace coppice::attention::cuda {

template <class T, int D>
struct Computer {
  using Shape = Tile<T, D>;
  static constexpr int kSteps = D / 16;                          ///< products of a score
  static constexpr int kAtOnce = D % 128 == 0 ? 2 : 1;           ///< panels of values in one product
  static constexpr int kParts = Shape::kPanels / kAtOnce;        ///< products that make a row of sums
  static constexpr int kPartSums = kAtOnce * Shape::kPanel / 2;  ///< registers

  const TreeAttention& a;
  Shared<T, D> shared;
  int group, warp, lane;  ///< of the block's two warpgroups; of the group's four warps
  float scale = a.scale * kLog2E;
  std::uint32_t first_stage = 0;  ///< of the item in hand, counted from the launch's first
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

  /// Waits for the next item's queries. False: there are no more.
  __device__ bool next_item() {
    shared.queries_full(turns.turn).wait(turns.parity(turns.turn));
    const auto word = [&](int i) {
      return static_cast<std::int32_t>(uniform(reinterpret_cast<const std::uint32_t*>(shared.head(turns.turn))[i]));
    };
    head = {word(0), word(1), word(2), word(3), word(4), word(5), word(6), static_cast<std::uint32_t>(word(7))};
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
    unsigned char* const queries = shared.queries(half);
    const auto own_lane = static_cast<unsigned>(lane);
    if (narrow) {  // each warp some of what both groups read
      swizzle_queries<T, D>(queries, group * 4 + warp, own_lane);
      sync_named(kBothGroups, 2 * kGroupThreads);
    } else {
      swizzle_queries<T, D>(queries, 2 * warp, own_lane);
      swizzle_queries<T, D>(queries, 2 * warp + 1, own_lane);
      sync_named(kOneGroup + group, kGroupThreads);
    }
    seen = a.items[head.item].seen[lane];
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
  }

  /// Whether a step has slots that nobody sees. A long run has them at its end only.
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
    wait_for_stage(2 * n + 1);
    unsigned char* const values = shared.stage(stage_of(2 * n + 1));
    const int mine = narrow ? Shape::kBlocks / 2 : Shape::kBlocks, first = narrow ? group * mine : 0;
    const int threads = narrow ? kGroupThreads : 2 * kGroupThreads;
    const int thread = (narrow ? 0 : group * kGroupThreads) + warp * 32 + lane;
    for (int b = first; b < first + mine; ++b) {
      const int of_block = seen_of(n * Shape::kBlocks + b);
      clear_slots<T, D>(values, b * kBlockSize + of_block, kBlockSize - of_block, thread, threads);
    }
    fence_stores();
    sync_named(narrow ? kOneGroup + group : kBothGroups, threads);
  }

  /// The factors of a product of a score, columns [16 step, +16) of queries and keys.
  __device__ static std::uint32_t column(int step, int panel_bytes) {
    const int panel = step * 16 / Shape::kPanel, inside = step * 16 % Shape::kPanel;
    return static_cast<std::uint32_t>(panel * panel_bytes + inside * 2);
  }

  /// Leaves the products in flight. `tokens`: where this group's begin in a stage.
  template <int kN>
  __device__ void start_scores(float (&s)[kN], int n, int tokens) {
    wait_for_stage(2 * n);
    const std::uint64_t queries = describe<Shape::kPanelRow, 16, 8 * Shape::kQueryBytes>(
                            uniform(shared_address(shared.queries(half)))),
                        keys = describe<Shape::kPanelRow>(
                            uniform(shared_address(shared.stage(stage_of(2 * n)) + tokens * Shape::kPanelRow)));
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply<T>(s, behind(queries, column(step, 8 * Shape::kPanelRow)),
                  behind(keys, column(step, Shape::kPanelBytes)), step > 0);
    }
    commit_products();
  }

  template <int kN>
  __device__ void finish_scores(float (&s)[kN], int first_token, float (&factor)[2]) {
    if (!active) return;
    if (a.softcap > 0.0F) cap_scores(a, s);
    if (first_token < head.full_lo || first_token + 2 * kN > head.full_hi) mask_scores(s, row, first_token, lane);
    weigh(s, scale, max, sum, factor);
  }

  __device__ void scale_sums(const float (&factor)[2]) {
    if (!__any_sync(~0U, factor[0] != 1.0F || factor[1] != 1.0F)) return;
#pragma unroll
    for (auto& part : sums) {
#pragma unroll
      for (int i = 0; i < kPartSums; ++i) part[i] *= factor[i / 2 % 2];
    }
  }

  template <int kKeySteps>
  __device__ void start_values(const std::uint32_t (&p)[kKeySteps][4], int n, int tokens) {
    wait_for_stage(2 * n + 1);
    const std::uint64_t values = describe<Shape::kPanelRow, Shape::kPanelBytes>(
        uniform(shared_address(shared.stage(stage_of(2 * n + 1)) + tokens * Shape::kPanelRow)));
    for (auto& part : sums) pin(part);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const auto offset =
            static_cast<std::uint32_t>(part * kAtOnce * Shape::kPanelBytes + step * 16 * Shape::kPanelRow);
        multiply<T, true>(sums[part], p[step], behind(values, offset), 1);
      }
    }
    commit_products();
  }

  __device__ void skip_step(int n) const {
    for (int stage = 2 * n; stage < 2 * n + 2; ++stage) {
      wait_for_stage(stage);
      release_stage(stage, false);
    }
  }

  /// kTokens: of a step, for this group. While a step's weights are computed, the tensor cores multiply those of the
  /// step before. In wide items the groups give them work in turn, so that one computes weights while the other's
  /// products are under way.
  template <int kTokens>
  __device__ void compute_item(int n_steps) {
    constexpr bool is_wide = kTokens == Shape::kTokens;
    const int tokens = is_wide ? 0 : group * kTokens;
    const bool has_end = (n_steps - 1) * Shape::kTokens + tokens < head.n_blocks * kBlockSize;
    const int end = has_end ? n_steps : n_steps - 1;
    float s[kTokens / 2], factor[2] = {1.0F, 1.0F};
    std::uint32_t p[kTokens / 16][4];
    if (end > 0) {
      start_scores(s, 0, tokens);
      wait_for_products();
      pin(s);
      release_stage(0, false);
      finish_scores(s, tokens, factor);
      pack_weights<T>(p, s);
    }
    for (int n = 1; n < end; ++n) {
      const bool ragged = is_ragged(n - 1);
      if (ragged) clear_unseen(n - 1);
      if (is_wide) sync_named(kTurn + group, 2 * kGroupThreads);
      start_scores(s, n, tokens);
      start_values(p, n - 1, tokens);
      if (is_wide) arrive_named(kTurn + (group ^ 1), 2 * kGroupThreads);
      wait_for_products<1>();
      pin(s);
      release_stage(2 * n, false);
      finish_scores(s, n * Shape::kTokens + tokens, factor);
      wait_for_products();
      for (auto& part : sums) pin(part);
      release_stage(2 * n - 1, ragged);
      scale_sums(factor);
      pin(s);
      pack_weights<T>(p, s);
    }
    release_queries();
    if (end > 0) {
      const bool ragged = is_ragged(end - 1);
      if (ragged) clear_unseen(end - 1);
      start_values(p, end - 1, tokens);
      wait_for_products();
      for (auto& part : sums) pin(part);
      release_stage(2 * end - 1, ragged);
    }
    if (!has_end) skip_step(end);
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

  __device__ void finish_item() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0U, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0U, sum[r], 2);
    }
    if (narrow && head.n_blocks > Shape::kBlocks / 2) join();
    if (active && (!narrow || group == 0)) write();
  }

  /// An item of few queries.
  __device__ void compute_slim(int n_steps) {
    // As in swizzle_queries().
    int own_warp = group * 4 + warp, own_lane = lane;
    asm volatile("" : "+r"(own_warp), "+r"(own_lane));
    SlimComputer<T, D> slim{a, shared, head, own_warp, own_lane, n_queries, scale};
    slim.read_queries(shared_address(shared.queries(half)));
    release_queries();
    shared.join_empty().wait(join_parity ^ 1);  // of a narrow item before this one
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slim.row[i] = {-1, 0, 0, -1};
      if (lane % 4 * 2 + i < n_queries) slim.row[i] = a.rows[head.first_row + row_of(lane % 4 * 2 + i)];
    }
    seen = a.items[head.item].seen[lane];
    for (int n = 0; n < n_steps; ++n) {
      const int block = n * Shape::kBlocks + own_warp / 2;  // two warps have one
      if (block >= head.n_blocks) {
        skip_step(n);
        continue;
      }
      float s[2][4] = {};
      wait_for_stage(2 * n);
      slim.compute_scores(s, shared_address(shared.stage(stage_of(2 * n))), n * Shape::kTokens);
      release_stage(2 * n, true);
      unsigned char* const values = shared.stage(stage_of(2 * n + 1));
      wait_for_stage(2 * n + 1);
      if (is_ragged(n)) slim.clear_unseen(values, seen_of(block));
      slim.add_values(s[0], shared_address(values));
      release_stage(2 * n + 1, true);
    }
    slim.join_and_write(slim_parity);
    slim_parity ^= 1;
  }

  /// Computes what is fetched.
  __device__ void run() {
    if (group == 1) arrive_named(kTurn, 2 * kGroupThreads);  // the first turn is group 0's
    while (next_item()) {
      const int n = n_steps<Shape>(head);
      if (Shape::kHasSlim && n_queries <= kSlimQueries) {
        if constexpr (Shape::kHasSlim) compute_slim(n);
      } else {
        begin_item();
        if (narrow) {
          compute_item<Shape::kTokens / 2>(n);
        } else {
          compute_item<Shape::kTokens>(n);
        }
        finish_item();
      }
      first_stage += 2 * static_cast<std::uint32_t>(n);
    }
  }
};

}  // namespace coppice::attention::cuda
