#include "executor/ggml/block_offsets.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Compiled once for each instruction set that the compiler knows; the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/ggml/block_offsets.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace coppice::executor::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kWeightsPerBlock = 32;
constexpr int kRows = 4;     // of x and y at a time
constexpr int kBlocks = 64;  // block sums held at a time: inputs of up to 2,048 values take one pass

/// sums[b] = the sum of x over block b.
void sum_blocks(const float* x, int n_blocks, float* sums) {
  const hn::CappedTag<float, kWeightsPerBlock> d;
  for (int b = 0; b < n_blocks; ++b) {
    auto sum = hn::LoadU(d, x + b * kWeightsPerBlock);
    for (std::size_t i = hn::Lanes(d); i < kWeightsPerBlock; i += hn::Lanes(d)) {
      sum = hn::Add(sum, hn::LoadU(d, x + b * kWeightsPerBlock + i));
    }
    sums[b] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

/// y[r][o] += sum over b of c[b][o] * sums[r][b], for `Rows` rows.
template <int Rows>
void add_rows(const float* c, const float (*sums)[kBlocks], int n_blocks, int n_out, int first_out, int end_out,
              float* y) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int o = first_out;
  for (; o + lanes <= end_out; o += lanes) {
    hn::Vec<decltype(d)> acc[Rows];
    for (int r = 0; r < Rows; ++r) acc[r] = hn::LoadU(d, y + std::ptrdiff_t{r} * n_out + o);
    for (int b = 0; b < n_blocks; ++b) {
      const auto offsets = hn::LoadU(d, c + std::ptrdiff_t{b} * n_out + o);
      for (int r = 0; r < Rows; ++r) acc[r] = hn::MulAdd(offsets, hn::Set(d, sums[r][b]), acc[r]);
    }
    for (int r = 0; r < Rows; ++r) hn::StoreU(acc[r], d, y + std::ptrdiff_t{r} * n_out + o);
  }
  for (; o < end_out; ++o) {
    for (int r = 0; r < Rows; ++r) {
      for (int b = 0; b < n_blocks; ++b)
        y[std::ptrdiff_t{r} * n_out + o] += c[std::ptrdiff_t{b} * n_out + o] * sums[r][b];
    }
  }
}

/// Rows [first_row, end_row) and outputs [first_out, end_out) of y += C s.
void add_offsets(const float* c, const float* x, float* y, int n_in, int n_out, int first_row, int end_row,
                 int first_out, int end_out) {
  float sums[kRows][kBlocks];
  for (int row = first_row; row < end_row; row += kRows) {
    const int rows = std::min(kRows, end_row - row);
    for (int first = 0; first < n_in / kWeightsPerBlock; first += kBlocks) {
      const int n_blocks = std::min(kBlocks, n_in / kWeightsPerBlock - first);
      for (int r = 0; r < rows; ++r) {
        sum_blocks(x + std::ptrdiff_t{row + r} * n_in + first * kWeightsPerBlock, n_blocks, sums[r]);
      }
      const float* offsets = c + std::ptrdiff_t{first} * n_out;
      float* out = y + std::ptrdiff_t{row} * n_out;
      if (rows == kRows) {
        add_rows<kRows>(offsets, sums, n_blocks, n_out, first_out, end_out, out);
      } else {
        for (int r = 0; r < rows; ++r) {
          add_rows<1>(offsets, sums + r, n_blocks, n_out, first_out, end_out, out + std::ptrdiff_t{r} * n_out);
        }
      }
    }
  }
}

}  // namespace coppice::executor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::executor {

namespace {

HWY_EXPORT(add_offsets);

struct Q4_0 {
  std::uint16_t d;
  std::uint8_t q[BlockOffsets::kBlock / 2];
};
struct Q4_1 {
  std::uint16_t d, m;
  std::uint8_t q[BlockOffsets::kBlock / 2];
};

/// Part `index` of n items among `parts`: [first, end), borders at multiples of `unit`.
std::pair<int, int> share(int n, int index, int parts, int unit) {
  const auto border = [&](int i) {
    return static_cast<int>(std::min<std::int64_t>(n, (std::int64_t{n} * i / parts + unit - 1) / unit * unit));
  };
  return {border(index), border(index + 1)};
}

}  // namespace

BlockOffsets::BlockOffsets(std::span<const std::byte> matrix, int n_in, int n_out)
    : n_in_(n_in), n_out_(n_out), offsets_(static_cast<std::size_t>(n_in / kBlock) * static_cast<std::size_t>(n_out)) {
  const auto n_blocks = static_cast<std::size_t>(n_in / kBlock);
  const auto rows = static_cast<std::size_t>(n_out);
  for (std::size_t o = 0; o < rows; ++o) {
    for (std::size_t b = 0; b < n_blocks; ++b) {
      Q4_1 block;
      std::memcpy(&block, matrix.data() + (o * n_blocks + b) * sizeof(Q4_1), sizeof(Q4_1));
      offsets_[b * rows + o] = ggml_fp16_to_fp32(block.m) + 8.0F * ggml_fp16_to_fp32(block.d);
    }
  }
}

std::vector<std::byte> BlockOffsets::without_offsets(std::span<const std::byte> matrix) {
  const std::size_t n = matrix.size() / sizeof(Q4_1);
  std::vector<std::byte> result(n * sizeof(Q4_0));
  for (std::size_t i = 0; i < n; ++i) {
    Q4_1 from;
    std::memcpy(&from, matrix.data() + i * sizeof(Q4_1), sizeof(Q4_1));
    Q4_0 to{from.d, {}};
    std::ranges::copy(from.q, to.q);
    std::memcpy(result.data() + i * sizeof(Q4_0), &to, sizeof(Q4_0));
  }
  return result;
}

ggml_tensor* BlockOffsets::add_to(ggml_context* context, ggml_tensor* y, ggml_tensor* x) const {
  constexpr auto run = [](ggml_tensor* dst, int worker, int n_workers, void* self) {
    const auto& o = *static_cast<const BlockOffsets*>(self);
    const auto n_rows = static_cast<int>(dst->ne[1]);
    // Few rows: each worker takes some outputs, and sums the blocks of x again.
    const bool by_rows = n_rows >= 8 * n_workers;
    const auto [first_row, end_row] = by_rows ? share(n_rows, worker, n_workers, 4) : std::pair(0, n_rows);
    const auto [first, end] = by_rows ? std::pair(0, o.n_out_) : share(o.n_out_, worker, n_workers, 16);
    HWY_DYNAMIC_DISPATCH(add_offsets)
    (o.offsets_.data(), static_cast<const float*>(dst->src[1]->data), static_cast<float*>(dst->data), o.n_in_, o.n_out_,
     first_row, end_row, first, end);
  };
  return ggml_custom_inplace(context, y, &x, 1, run, GGML_N_TASKS_MAX, const_cast<BlockOffsets*>(this));
}

}  // namespace coppice::executor
#endif  // HWY_ONCE
