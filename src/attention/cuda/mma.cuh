// The tree kernel for GPUs without wgmma (8.x), and for int8 blocks everywhere: the same items, plan and partial
// states, computed with the warps' own `mma`. A warp has 16 queries; where an item has fewer than 128, several warps
// have the same ones and take turns at the blocks, and their states are joined at the end. Rounds of some blocks come
// by cp.async while those before are computed.
//
// Of a product's 16 x 8 results a thread holds two neighbouring columns (lane % 4) of rows lane / 4 and 8 + lane / 4.
// Which eight columns or 16 summands make a product does not matter, as long as both factors agree: bytes are taken as
// they lie in words.
#pragma once

#include "attention/cuda/partial_state.cuh"
#include "attention/cuda/tile.cuh"

namespace coppice::attention::cuda {

inline constexpr int kMmaThreads = 32 * kComputeWarps;

/// Bytes 0 and 2 of a word, signed, as two numbers, exactly.
template <class T>
__device__ inline std::uint32_t numbers(std::uint32_t x) {
  if constexpr (__is_same(T, __nv_bfloat16)) {  // the last seven bits of 128, less 128 or, if negative, 256
    const std::uint32_t low = (x & 0x007f007f) | 0x43004300, zero = (x & 0x00800080) | 0x43004300;
    const __nv_bfloat162 y =
        __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(zero));
    return reinterpret_cast<const std::uint32_t&>(y);
  } else {  // the last eight bits of 1024, less 1152
    const std::uint32_t low = ((x & 0x00ff00ff) ^ 0x00800080) | 0x64006400, zero = 0x64806480;
    const __half2 y = __hsub2(reinterpret_cast<const __half2&>(low), reinterpret_cast<const __half2&>(zero));
    return reinterpret_cast<const std::uint32_t&>(y);
  }
}

template <class T, int D, bool kBytes>
struct MmaTile {
  static constexpr int kRound = D <= 128 ? 4 : 1;  ///< blocks
  static constexpr int kPanelRow = 2 * panel_width(D);
  static constexpr int kByteRow = D + 16;  ///< 16 more, or rows share banks
  static constexpr int kHalfBytes = kBytes ? kBlockSize * kByteRow + 2 * kBlockSize : kBlockSize * D * 2;
  static constexpr int kBlockBytes = 2 * kHalfBytes;
  static constexpr int kQueryBytes = 2 * D + 16;
  static constexpr int kRingBytes = 2 * kRound * kBlockBytes;
  static constexpr int kJoinBytes = kComputeWarps * (D * 64 + 16 * 8);
  static constexpr int kUsedBytes = kRingBytes + kItemQueries * kQueryBytes;
  static constexpr int kSharedBytes = kUsedBytes > kJoinBytes ? kUsedBytes : kJoinBytes;
};

template <class T, int D, bool kBytes>
struct MmaComputer {
  using Shape = MmaTile<T, D, kBytes>;
  static constexpr int kSteps = D / 16;
  const TreeAttention& a;
  unsigned char* memory;
  int warp, lane;
  int per_row = a.n_head / a.n_kv_head;
  float scale = a.scale * kLog2E;

  // Of the item in hand.
  const Item* item = nullptr;
  int kv_head = 0, n_queries = 0;
  int share = 1, tile = 0, part = 0;  ///< warps with the same queries; which 16; which of them this is
  ItemRow row[2] = {};
  float max[2], sum[2], sums[2 * kSteps][4];

  __device__ unsigned char* block_at(int n) const {
    return memory + (n / Shape::kRound % 2 * Shape::kRound + n % Shape::kRound) * Shape::kBlockBytes;
  }
  __device__ unsigned char* queries() const { return memory + Shape::kRingBytes; }
  __device__ kv::BlockId block_id(int n) const {
    const Item* list = n < kItemBlocks ? item : a.items + item->more + n / kItemBlocks - 1;
    return list->blocks[n % kItemBlocks];
  }
  __device__ int seen_of(int n) const {
    const int tail = tail_of(item->n_blocks);
    return n < tail ? kBlockSize : item->seen[n - tail];
  }
  __device__ int query(int r) const { return tile * 16 + lane / 4 + 8 * r; }

  /// By all threads: round `round` of blocks.
  __device__ void fetch(int round) const {
    constexpr int kHead = kBytes ? kBlockSize * D + 2 * kBlockSize : kBlockSize * D * 2;  ///< bytes of a head's keys
    constexpr int kPieces = kHead / 16;
    const int first = round * Shape::kRound, n = min(Shape::kRound, item->n_blocks - first);
    for (int i = static_cast<int>(threadIdx.x); i < 2 * n * kPieces; i += kMmaThreads) {
      const int b = i / (2 * kPieces), is_value = i / kPieces % 2, piece = i % kPieces;
      const std::byte* from = (is_value != 0 ? a.values : a.keys) + block_id(first + b) * a.block_bytes +
                              static_cast<std::int64_t>(kv_head) * kHead + piece * 16;
      int to = piece * 16;
      if (kBytes)
        to = piece < kBlockSize * D / 16 ? piece / (D / 16) * Shape::kByteRow + piece % (D / 16) * 16
                                         : kBlockSize * Shape::kByteRow + (piece - kBlockSize * D / 16) * 16;
      copy_16(shared_address(block_at(first + b)) + static_cast<std::uint32_t>(is_value * Shape::kHalfBytes + to),
              from);
    }
    commit_copies();
  }

  __device__ void fetch_queries() const {
    constexpr int kPieces = D / 8;
    for (int i = static_cast<int>(threadIdx.x); i < n_queries * kPieces; i += kMmaThreads) {
      const int q = i / kPieces;
      const std::int64_t at = (static_cast<std::int64_t>(a.rows[item->first_row + q / per_row].row) * a.n_head +
                               kv_head * per_row + q % per_row) *
                              D;
      copy_16(shared_address(queries()) + static_cast<std::uint32_t>(q * Shape::kQueryBytes + i % kPieces * 16),
              static_cast<const T*>(a.q) + at + i % kPieces * 8);
    }
  }

  __device__ void begin_item() {
    n_queries = item->n_rows * per_row;
    const int tiles = (n_queries + 15) / 16;
    share = tiles > 4 ? 1 : tiles > 2 ? 2 : tiles > 1 ? 4 : 8;
    tile = warp / share;
    part = warp % share;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = {-1, 0, 0, -1};
      if (query(r) < n_queries) row[r] = a.rows[item->first_row + query(r) / per_row];
      max[r] = -INFINITY;
      sum[r] = 0.0F;
    }
#pragma unroll
    for (auto& s : sums) {
#pragma unroll
      for (float& x : s) x = 0.0F;
    }
  }

  /// Slots behind the last that anyone sees may hold anything, NaN too, and weights of 0 would not hide that. By all
  /// threads.
  __device__ void clear_unseen(int round) const {
    if constexpr (kBytes) return;
    const int first = round * Shape::kRound, n = min(Shape::kRound, item->n_blocks - first);
    const int in_tail = first - tail_of(item->n_blocks);  // below 0: of a long run, and not its end
    if (in_tail < 0 || (item->ragged >> in_tail & ((1U << Shape::kRound) - 1)) == 0) return;
    for (int b = first; b < first + n; ++b) {
      const int seen = seen_of(b);
      for (int i = static_cast<int>(threadIdx.x); i < (kBlockSize - seen) * D; i += kMmaThreads) {
        *reinterpret_cast<std::uint16_t*>(block_at(b) + Shape::kHalfBytes +
                                          offset_in_head(D, kBlockSize, seen + i / D, i % D)) = 0;
      }
    }
    __syncthreads();
  }

  __device__ void read_query(std::uint32_t (&q)[4], int step) const {
    if constexpr (kBytes) {  // four numbers a lane, in the order of the bytes: the even ones, the odd ones
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint2 x =
            *reinterpret_cast<const uint2*>(queries() + query(r) * Shape::kQueryBytes + step * 32 + lane % 4 * 8);
        q[r] = __byte_perm(x.x, x.y, 0x5410);
        q[r + 2] = __byte_perm(x.x, x.y, 0x7632);
      }
    } else {
      load_matrices(
          q, shared_address(queries()) +
                 static_cast<std::uint32_t>((tile * 16 + lane % 16) * Shape::kQueryBytes + step * 32 + lane / 16 * 16));
    }
  }

  /// Of 16 tokens from `token` on and 16 dims: the second factors of two products, [8 tokens][register].
  __device__ void read_keys(std::uint32_t (&k)[2][2], const unsigned char* keys, int token, int step) const {
    if constexpr (kBytes) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t x = *reinterpret_cast<const std::uint32_t*>(
            keys + (token + 8 * i + lane / 4) * Shape::kByteRow + step * 16 + lane % 4 * 4);
        k[i][0] = numbers<T>(x);
        k[i][1] = numbers<T>(x >> 8);
      }
    } else {
      std::uint32_t x[4];
      load_matrices(x, shared_address(keys) +
                           static_cast<std::uint32_t>(offset_in_head(D, kBlockSize, token + lane / 16 * 8 + lane % 8,
                                                                     step * 16 + lane / 8 % 2 * 8)));
      k[0][0] = x[0];
      k[0][1] = x[1];
      k[1][0] = x[2];
      k[1][1] = x[3];
    }
  }

  /// Of 16 tokens and 16 dims: [8 dims][register]; of bytes the even dims, then the odd ones.
  __device__ void read_values(std::uint32_t (&v)[2][2], const unsigned char* values, int token, int step) const {
    std::uint32_t x[4];
    const int slot = token + lane % 16;
    if constexpr (kBytes) {
      std::uint32_t y[2];
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                   : "=r"(y[0]), "=r"(y[1])
                   : "r"(shared_address(values) + static_cast<std::uint32_t>(slot * Shape::kByteRow + step * 16))
                   : "memory");
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[0][i] = numbers<T>(y[i]);
        v[1][i] = numbers<T>(y[i] >> 8);
      }
    } else {
      load_matrices_transposed(x, shared_address(values) + static_cast<std::uint32_t>(offset_in_head(
                                                               D, kBlockSize, slot, step * 16 + lane / 16 * 8)));
      v[0][0] = x[0];
      v[0][1] = x[1];
      v[1][0] = x[2];
      v[1][1] = x[3];
    }
  }

  /// A block, which has tokens [first_token, +32) of the item.
  __device__ void compute(const unsigned char* keys, int first_token, int seen) {
    const unsigned char* values = keys + Shape::kHalfBytes;
    float s[4][4] = {};  ///< [8 tokens]
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t q[4], k[2][2];
      read_query(q, step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        read_keys(k, keys, half * 16, step);
        multiply_16x8<T>(s[2 * half], q, k[0][0], k[0][1]);
        multiply_16x8<T>(s[2 * half + 1], q, k[1][0], k[1][1]);
      }
    }
    const auto* key_scales = reinterpret_cast<const __half2*>(keys + kBlockSize * Shape::kByteRow) + lane % 4;
    const auto* value_scales = reinterpret_cast<const __half2*>(values + kBlockSize * Shape::kByteRow) + lane % 4;
    if constexpr (kBytes) {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        s[i / 4][i % 4] *= i % 2 == 0 ? __low2float(key_scales[i / 4 * 4]) : __high2float(key_scales[i / 4 * 4]);
    }
    if (a.softcap > 0.0F) {
#pragma unroll
      for (auto& x : s) cap_scores(a, x);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int token = first_token + i / 4 * 8 + lane % 4 * 2 + i % 2;
      float& x = s[i / 4][i % 4];
      const ItemRow& r = row[i / 2 % 2];
      if (token < r.lo || token >= r.hi) x = -INFINITY;
    }
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = -INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) m = fmaxf(m, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0U, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0U, m, 2));
      m = fmaxf(max[r], m * scale);
      const float base = m == -INFINITY ? 0.0F : m;
      factor[r] = exp2_fast(max[r] - base);
      max[r] = m;
      sum[r] *= factor[r];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& x = s[i / 2][2 * r + i % 2];
        x = exp2_fast(fmaf(x, scale, -base));
        sum[r] += x;
        if constexpr (kBytes) {  // scales behind the last slot that anyone sees may be anything
          const __half2 of = value_scales[i / 2 * 4];
          x = i / 2 * 8 + lane % 4 * 2 + i % 2 < seen ? x * (i % 2 == 0 ? __low2float(of) : __high2float(of)) : 0.0F;
        }
      }
    }
#pragma unroll
    for (auto& part_sums : sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) part_sums[i] *= factor[i / 2];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t p[4] = {pack<T>(s[2 * half][0], s[2 * half][1]), pack<T>(s[2 * half][2], s[2 * half][3]),
                                  pack<T>(s[2 * half + 1][0], s[2 * half + 1][1]),
                                  pack<T>(s[2 * half + 1][2], s[2 * half + 1][3])};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t v[2][2];
        read_values(v, values, half * 16, step);
        multiply_16x8<T>(sums[2 * step], p, v[0][0], v[0][1]);
        multiply_16x8<T>(sums[2 * step + 1], p, v[1][0], v[1][1]);
      }
    }
  }

  /// Warps with the same queries: the first takes over the others' states, in their order. By all threads.
  __device__ void join() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(~0U, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0U, sum[r], 2);
    }
    if (share == 1) return;
    auto* all = reinterpret_cast<float*>(memory);
    auto* states = reinterpret_cast<float2*>(memory + kComputeWarps * D * 64);
    const auto sums_of = [&](int w) { return all + w * (D / 2) * 32 + lane; };
    const auto state_of = [&](int w) { return states + w * 16 + lane / 4; };
    if (part > 0) hand_over(max, sum, sums, sums_of(warp), 32, state_of(warp), lane);
    __syncthreads();
    if (part > 0) return;
    for (int other = warp + 1; other < warp + share; ++other)
      take_over(max, sum, sums, sums_of(other), 32, state_of(other));
  }

  /// Two neighbouring sums.
  __device__ void put(std::int64_t at, bool final, float x, float y) const {
    if (final) {
      *reinterpret_cast<std::uint32_t*>(static_cast<T*>(a.out) + at) = pack<T>(x, y);
    } else {
      *reinterpret_cast<float2*>(a.scratch.sums + at) = {x, y};
    }
  }

  __device__ void write() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (query(r) >= n_queries) continue;
      const int h = kv_head * per_row + query(r) % per_row;
      const bool final = row[r].slot < 0;
      const std::int64_t first = static_cast<std::int64_t>(final ? row[r].row : row[r].slot) * a.n_head + h;
      const float factor = final ? 1.0F / with_sink(a, h, max[r], sum[r]) : 1.0F;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float *low = sums[2 * step] + 2 * r, *high = sums[2 * step + 1] + 2 * r;
        const std::int64_t at = first * D + step * 16 + lane % 4 * (kBytes ? 4 : 2);
        put(at, final, low[0] * factor, (kBytes ? high[0] : low[1]) * factor);
        put(at + (kBytes ? 2 : 8), final, (kBytes ? low[1] : high[0]) * factor, high[1] * factor);
      }
      if (!final && lane % 4 == 0) reinterpret_cast<float2*>(a.scratch.states)[first] = {max[r], sum[r]};
    }
  }

  /// One item of one key head, by all threads.
  __device__ void run(int unit) {
    item = a.items + unit / a.n_kv_head;
    kv_head = unit % a.n_kv_head;
    begin_item();
    fetch_queries();
    fetch(0);
    const int rounds = (item->n_blocks + Shape::kRound - 1) / Shape::kRound;
    for (int round = 0; round < rounds; ++round) {
      if (round + 1 < rounds) {
        fetch(round + 1);
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      __syncthreads();
      clear_unseen(round);
      const int end = min(item->n_blocks, (round + 1) * Shape::kRound);
      for (int b = round * Shape::kRound; b < end; ++b) {
        if (b % share == part && tile * 16 < n_queries) compute(block_at(b), b * kBlockSize, seen_of(b));
      }
      __syncthreads();
    }
    join();
    if (part == 0) write();
    __syncthreads();
  }
};

}  // namespace coppice::attention::cuda
