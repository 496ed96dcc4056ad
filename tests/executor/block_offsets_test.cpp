// Q4_1 as Q4_0 plus offsets: the same weights, the same products.
#include "executor/ggml/block_offsets.h"

#include <ggml-cpu.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace coppice {
namespace {

using executor::BlockOffsets;

std::vector<float> dequantise(ggml_type type, std::span<const std::byte> bytes, std::size_t n) {
  std::vector<float> result(n);
  ggml_get_type_traits(type)->to_float(bytes.data(), result.data(), static_cast<std::int64_t>(n));
  return result;
}

std::vector<float> random_values(std::mt19937& random, std::size_t n) {
  std::normal_distribution<float> normal(0.2F, 1.0F);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

std::vector<std::byte> random_q4_1(std::mt19937& random, int n_in, int n_out) {
  const auto values = random_values(random, static_cast<std::size_t>(n_in) * static_cast<std::size_t>(n_out));
  std::vector<std::byte> bytes(ggml_row_size(GGML_TYPE_Q4_1, n_in) * static_cast<std::size_t>(n_out));
  ggml_quantize_chunk(GGML_TYPE_Q4_1, values.data(), bytes.data(), 0, n_out, n_in, nullptr);
  return bytes;
}

struct Shape {
  int n_in, n_out, n_rows, n_threads;
};

class BlockOffsetsTest : public testing::TestWithParam<Shape> {};

// One block, a tail of outputs that fills no vector, more blocks than are summed at a time, few rows and many, rows that
// fill no group of four.
INSTANTIATE_TEST_SUITE_P(Shapes, BlockOffsetsTest,
                         testing::Values(Shape{32, 8, 1, 1}, Shape{64, 21, 3, 2}, Shape{576, 192, 5, 2},
                                         Shape{576, 100, 37, 3}, Shape{2080, 72, 4, 2}, Shape{4160, 48, 6, 1}));

TEST_P(BlockOffsetsTest, QuantsPlusOffsetsTimesXIsTheMatrixTimesX) {
  const auto [n_in, n_out, n_rows, n_threads] = GetParam();
  std::mt19937 random(5);
  const auto matrix = random_q4_1(random, n_in, n_out);
  const auto n = static_cast<std::size_t>(n_in) * static_cast<std::size_t>(n_out);
  const auto whole = dequantise(GGML_TYPE_Q4_1, matrix, n);
  const auto quants = dequantise(GGML_TYPE_Q4_0, BlockOffsets::without_offsets(matrix), n);
  const BlockOffsets offsets(matrix, n_in, n_out);

  std::vector<std::byte> memory(std::size_t{16} << 20);
  ggml_context* context = ggml_init({memory.size(), memory.data(), false});
  ggml_tensor* x = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_in, n_rows);
  ggml_tensor* y = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_out, n_rows);
  const auto values = random_values(random, static_cast<std::size_t>(n_in) * static_cast<std::size_t>(n_rows));
  std::ranges::copy(values, ggml_get_data_f32(x));
  const auto product = [&](const std::vector<float>& w, int row, int out) {
    double sum = 0;
    for (int i = 0; i < n_in; ++i) {
      sum +=
          double{w[static_cast<std::size_t>(out) * static_cast<std::size_t>(n_in) + static_cast<std::size_t>(i)]} *
          double{values[static_cast<std::size_t>(row) * static_cast<std::size_t>(n_in) + static_cast<std::size_t>(i)]};
    }
    return sum;
  };
  for (int r = 0; r < n_rows; ++r) {
    for (int o = 0; o < n_out; ++o) ggml_set_f32_nd(y, o, r, 0, 0, static_cast<float>(product(quants, r, o)));
  }
  ggml_cgraph* graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, offsets.add_to(context, y, x));
  ASSERT_EQ(ggml_graph_compute_with_ctx(context, graph, n_threads), GGML_STATUS_SUCCESS);
  for (int r = 0; r < n_rows; ++r) {
    for (int o = 0; o < n_out; ++o) {
      EXPECT_NEAR(ggml_get_f32_nd(y, o, r, 0, 0), product(whole, r, o), 2e-4) << "row " << r << ", output " << o;
    }
  }
  ggml_free(context);
}

}  // namespace
}  // namespace coppice
