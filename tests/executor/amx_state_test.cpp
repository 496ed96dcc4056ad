// Our kernels' AMX tiles beside ggml's. ggml gives a thread's tiles their shape once, and its next product would be
// silently wrong, or a fault, if ours left them another one.
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "attention/attend.h"
#include "executor/ggml/store/ggml_ptr.h"
#include "matmul/quant_matrix.h"
#include "simd/target.h"
#include "support/normal.h"

namespace coppice {
namespace {

ggml_backend_buffer_type_t amx_buffers() {
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  auto* get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
  for (ggml_backend_buffer_type_t* t = get ? get(cpu) : nullptr; t && *t; ++t) {
    if (std::string_view(ggml_backend_buft_name(*t)).starts_with("AMX")) return *t;
  }
  return nullptr;
}

TEST(AmxState, ProductsOfGgmlAreTheSameBeforeAndAfterOurKernels) {
  if (!simd::amx()) GTEST_SKIP() << "this CPU has no AMX";
  ggml_backend_buffer_type_t type = amx_buffers();
  ASSERT_TRUE(type) << "ggml was built without AMX on a machine that has it";

  constexpr int kIn = 256, kOut = 64, kRows = 32;
  std::mt19937 random(7);
  test::Normal normal;
  std::vector<float> x(std::size_t{kIn} * kRows), w(std::size_t{kIn} * kOut);
  for (float& v : x) v = normal(random);
  for (float& v : w) v = normal(random);
  const executor::ContextPtr weights = executor::make_context(1), rest = executor::make_context(8, 8);
  ggml_tensor* matrix = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q4_0, kIn, kOut);
  const executor::BufferPtr buffer(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), type));
  ASSERT_TRUE(buffer);
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  std::vector<std::byte> blocks(ggml_nbytes(matrix));
  ggml_quantize_chunk(GGML_TYPE_Q4_0, w.data(), blocks.data(), 0, kOut, kIn, nullptr);
  ggml_backend_tensor_set(matrix, blocks.data(), 0, blocks.size());

  ggml_tensor* input = ggml_new_tensor_2d(rest.get(), GGML_TYPE_F32, kIn, kRows);
  ggml_tensor* product = ggml_mul_mat(rest.get(), matrix, input);
  ggml_cgraph* graph = ggml_new_graph_custom(rest.get(), 8, false);
  ggml_build_forward_expand(graph, product);
  const std::unique_ptr<ggml_backend, executor::GgmlDeleter<ggml_backend_free>> backend(ggml_backend_cpu_init());
  ggml_backend_cpu_set_n_threads(backend.get(), 1);  // this thread computes
  const executor::BufferPtr memory(ggml_backend_alloc_ctx_tensors(rest.get(), backend.get()));
  const auto multiply = [&] {
    ggml_backend_tensor_set(input, x.data(), 0, x.size() * sizeof(float));
    EXPECT_EQ(ggml_backend_graph_compute(backend.get(), graph), GGML_STATUS_SUCCESS);
    std::vector<float> y(std::size_t{kOut} * kRows);
    ggml_backend_tensor_get(product, y.data(), 0, y.size() * sizeof(float));
    return y;
  };
  const test::AttentionCase c = test::named_case("16 decodes on a 2,048 prefix");
  const test::PoolData pool(c, 3, attention::KvFormat::kF16);
  const auto q = test::make_queries(c, 4);

  test::attend(c, pool, q, 1);  // ours may come first, too
  const std::vector<float> before = multiply();
  const test::Attended ours = test::attend(c, pool, q, 1);
  const std::vector<float> after = multiply();
  EXPECT_EQ(before, after);
  EXPECT_EQ(test::attend(c, pool, q, 1).out, ours.out);

  const matmul::QuantMatrix packed(matmul::QuantType::kQ4_0, kIn, kOut, blocks);
  std::vector<float> y(std::size_t{kOut} * kRows);
  const matmul::QuantMatrix::Product packed_product{&packed, y.data()};
  matmul::Claims claims;
  matmul::QuantMatrix::multiply({&packed_product, 1}, {x.data(), kRows}, claims, {});
  EXPECT_EQ(before, multiply());
}

}  // namespace
}  // namespace coppice
