// The GPU's packed order, without one: each weight is where quant_pack.h says, read here lane by lane.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "matmul/cuda/quant_pack.h"
#include "matmul/cuda/row_panels.h"
#include "matmul/cuda/tile_walk.h"
#include "quant_weights.h"
#include "support/attention_cases.h"

namespace coppice::matmul::cuda {
namespace {

double half_at(const std::byte* from) {
  _Float16 x;
  std::memcpy(&x, from, sizeof x);
  return static_cast<double>(x);
}
std::uint32_t word_at(const std::byte* from) {
  std::uint32_t x = 0;
  std::memcpy(&x, from, sizeof x);
  return x;
}

/// q - zero of input k of a chunk and output `out` of its tile, from the lane that has it.
int number_at(QuantType type, const std::byte* chunk, int k, int out) {
  const ChunkForm form = chunk_form(type);
  const int lane = out % 8 * 4 + k % 8 / 2, word = k % 32 / 16 * 2 + out / 8, block = k / 32 % 2;
  const int byte = k % 16 / 8 * 2 + k % 2, first_bit = byte * 8;  // in a word
  if (type == QuantType::kQ8_0) return static_cast<std::int8_t>(chunk[(block * 32 + lane) * 16 + word * 4 + byte]);
  const std::byte* low = chunk + (k / 64 * 32 + lane) * 16;
  if (type == QuantType::kMxfp4) {
    constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
    const std::uint32_t code = word_at(low + word * 4) >> (byte * 4 + 16 * block) & 15;
    return code < 8 ? kTwice[code] : -kTwice[code - 8];
  }
  int q = static_cast<int>(word_at(low + word * 4) >> (first_bit + 4 * block) & 15);
  const std::byte* high = chunk + form.high_at() + lane * 16;
  if (type == QuantType::kQ5K)
    q |= static_cast<int>(word_at(high + k / 64 * 4) >> (first_bit + 4 * block + word) & 1) << 4;
  if (type == QuantType::kQ6K) {
    high += k / 128 * 512 + k / 64 % 2 * 8 + block * 4;
    q |= static_cast<int>(word_at(high) >> (first_bit + 2 * word) & 3) << 4;
  }
  return q - (type == QuantType::kQ4_0 ? 8 : type == QuantType::kQ6K ? 32 : 0);
}

/// What number q at (k, out) stands for.
double weight_at(QuantType type, const std::byte* chunk, int k, int out) {
  const ChunkForm form = chunk_form(type);
  if (type == QuantType::kBf16) {  // registers: two inputs of both outputs, then those from 8 on
    const int at = out % 8 * 16 + k % 8 / 2 * 4 + k % 16 / 8 * 2 + out / 8;
    return std::bit_cast<float>(word_at(chunk + k / 16 * 512 + at * 4) >> (k % 2 * 16) << 16);
  }
  const int q = number_at(type, chunk, k, out);
  const std::byte *scales = chunk + form.scales_at() + out * 16, *deltas = chunk + form.deltas_at();
  if (type == QuantType::kMxfp4) return std::ldexp(q, std::to_integer<int>(deltas[k / 32 * 16 + out]) - 128);
  if (form.inputs == 64) return half_at(deltas + (k / 32 * 16 + out) * 2) * q;
  if (type == QuantType::kQ6K) return half_at(deltas + out * 2) * static_cast<std::int8_t>(scales[k / 16]) * q;
  return half_at(deltas + out * 4) * static_cast<int>(scales[k / 32]) * q +
         half_at(deltas + out * 4 + 2) * static_cast<int>(scales[8 + k / 32]);
}

TEST(CudaPack, HoldsEveryWeight) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(test::test_seed()));
  for (const QuantType type : {QuantType::kQ4_0, QuantType::kQ8_0, QuantType::kQ4K, QuantType::kQ5K, QuantType::kQ6K,
                               QuantType::kMxfp4, QuantType::kBf16}) {
    const int n_in = 768, n_out = 16 + static_cast<int>(random() % 40);
    const test::QuantWeights w = test::random_weights(type, n_in, n_out, random);
    const std::vector<std::byte> packed = pack(type, n_in, n_out, w.bytes);
    const ChunkForm form = chunk_form(type);
    const int chunks = n_in / form.inputs;
    ASSERT_EQ(std::ssize(packed), (n_out + 15) / 16 * chunks * form.bytes());
    for (int out = 0; out < n_out; ++out) {
      for (int k = 0; k < n_in; ++k) {
        const std::byte* chunk = packed.data() + (out / 16 * chunks + k / form.inputs) * form.bytes();
        const test::Weight& expected = w.weights[static_cast<std::size_t>(out * n_in + k)];
        ASSERT_EQ(weight_at(type, chunk, k % form.inputs, out % 16), expected.scaled() + expected.offset())
            << "type " << static_cast<int>(type) << ", output " << out << ", input " << k;
      }
    }
  }
}

/// However rows are shared out among parts, and the bound is reached.
TEST(RowPanels, HaveRoomForTheWorstCase) {
  for (const int panel_rows : {1, 2, 3, 5}) {
    for (int n_parts = 1; n_parts <= 4; ++n_parts) {
      for (int n_rows = 1; n_rows <= 12; ++n_rows) {
        // All ways, the first parts' rows as the digits of a number.
        int most = 0, ways = 1;
        for (int i = 1; i < n_parts; ++i) ways *= n_rows + 1;
        for (int way = 0; way < ways; ++way) {
          int left = n_rows, panels = 0;
          for (int i = 1, digits = way; i < n_parts; ++i, digits /= n_rows + 1) {
            left -= digits % (n_rows + 1);
            panels += (digits % (n_rows + 1) + panel_rows - 1) / panel_rows;
          }
          if (left >= 0) most = std::max(most, panels + (left + panel_rows - 1) / panel_rows);
        }
        EXPECT_EQ(most_panels(n_rows, n_parts, panel_rows), most)
            << n_rows << " rows of " << n_parts << " parts in panels of " << panel_rows;
      }
    }
  }
}

/// What a thread block does with a segment (tile_product.cuh): it finishes the tile, adding the parts of blocks behind it, or hands its
/// part over. Each stage is computed once, and each part handed over once and waited for once: else a launch waits for ever, or the
/// next one finds a part too many.
TEST(TileWalk, PartsAreHandedOverAndTakenOnce) {
  for (int n_blocks = 1; n_blocks <= 24; ++n_blocks) {
    for (int n_stages = 1; n_stages <= 9; ++n_stages) {
      for (int n_tiles = (n_blocks + n_stages - 1) / n_stages; n_tiles <= 80; ++n_tiles) {
        TileGrid grid{.n_stages = n_stages, .n_row_tiles = 1, .n_shared = 0, .n_tiles = n_tiles};
        grid.share(n_blocks);
        std::vector<int> stages(static_cast<std::size_t>(n_tiles * n_stages)),
            given(static_cast<std::size_t>(n_blocks), -1), wanted(given);
        for (int block = 0; block < n_blocks; ++block) {
          TileWalk walk(grid, block, n_blocks);
          bool first = true;
          for (Segment s{}; walk.next(s); first = false) {
            ASSERT_LT(s.first, s.end);
            for (int i = s.first; i < s.end; ++i) ++stages[static_cast<std::size_t>(s.tile * n_stages + i)];
            if (s.first > 0) {
              ASSERT_TRUE(first) << "its place for a part is still in use";
              given[static_cast<std::size_t>(block)] = s.tile;
            } else if (s.end < n_stages) {
              for (int other = block + 1; other <= grid.last_with(s.tile, block + 1, n_blocks); ++other) {
                ASSERT_EQ(wanted[static_cast<std::size_t>(other)], -1);
                wanted[static_cast<std::size_t>(other)] = s.tile;
              }
            }
          }
        }
        ASSERT_EQ(given, wanted) << n_tiles << " tiles of " << n_stages << " stages, " << n_blocks << " blocks";
        ASSERT_EQ(stages, std::vector<int>(stages.size(), 1));
      }
    }
  }
}

}  // namespace
}  // namespace coppice::matmul::cuda
