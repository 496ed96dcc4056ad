// dense and gather alone, against plain attention in double precision: full and sliding groups, chunks and decodes, on
// shuffled block ids. Slots that no row may see hold NaN and huge numbers.
#include <ggml-backend.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "attention/reference.h"
#include "executor/ggml/graph/attention.h"
#include "model/cpu_device.h"
#include "support/attention_cases.h"

namespace coppice::executor {
namespace {

using attention::KvFormat;

/// The backend's result for the case: [n_rows, n_head, head_dim].
std::vector<float> attend(const test::AttentionCase& c, const test::PoolData& pool, const std::vector<float>& queries,
                          bool dense, const std::vector<float>& sinks) {
  const KvLayer layer{0, c.heads.n_kv_head, c.heads.head_dim};
  const KvStore store(make_page_layout({{layer}}, pool.view.format, c.block_size), 2 * pool.keys.size());
  const std::size_t block = pool.view.block_stride;
  for (std::size_t at = 0; at < pool.keys.size(); at += block) {
    const std::size_t page = at / block * store.layout().page_bytes;
    std::memcpy(static_cast<std::byte*>(store.k(0)->data) + page, pool.keys.data() + at, block);
    std::memcpy(static_cast<std::byte*>(store.v(0)->data) + page, pool.values.data() + at, block);
  }

  Batch batch;
  for (const test::CaseSequence& s : c.sequences) {
    batch.sequences.push_back({s.n_rows, s.first_position, {{s.table, c.block_size}}, s.both_ways});
  }
  batch.rows.resize(static_cast<std::size_t>(c.n_rows()));
  kv::GroupSpec group = c.group;
  group.layers = {0};
  const AttentionConfig attention_config{&store, {{group, c.heads, 1}}};
  const auto backend = dense ? make_dense_attention(attention_config) : make_gather_attention(attention_config);
  const std::size_t n_nodes = backend->nodes_per_layer(batch) + 8;
  const ContextPtr context = make_context(n_nodes, n_nodes);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), n_nodes, false);
  const DecoderParts parts{.spec = nullptr, .weights = nullptr, .store = &store, .attention = backend.get()};
  const StepInputs inputs;
  std::vector<std::shared_ptr<void>> node_data;
  GraphBuilder b{.parts = parts, .context = context.get(), .graph = graph, .inputs = inputs, .node_data = node_data};
  backend->begin(b, batch);
  ggml_tensor* q =
      ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, c.heads.head_dim, c.heads.n_head, std::ssize(batch.rows));
  ggml_set_input(q);
  ggml_tensor* sinking = nullptr;
  if (!sinks.empty()) {
    sinking = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, std::ssize(sinks));
    ggml_set_input(sinking);
  }
  ggml_tensor* out = backend->attend(b, {q, store.k(0), store.v(0)}, 0, sinking);
  ggml_set_output(out);
  ggml_build_forward_expand(graph, out);
  const GraphAllocatorPtr memory(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
  EXPECT_TRUE(ggml_gallocr_alloc_graph(memory.get(), graph));
  std::memcpy(q->data, queries.data(), queries.size() * sizeof(float));
  if (sinking) std::memcpy(sinking->data, sinks.data(), sinks.size() * sizeof(float));
  backend->fill(batch);
  const std::unique_ptr<ggml_backend, GgmlDeleter<ggml_backend_free>> cpu(
      ggml_backend_dev_init(model::cpu_device(), nullptr));
  model::cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(cpu.get(), 1);  // more would spin
  EXPECT_EQ(ggml_backend_graph_compute(cpu.get(), graph), GGML_STATUS_SUCCESS);
  const auto* data = static_cast<const float*>(out->data);
  return {data, data + queries.size()};
}

struct Setup {
  bool dense;
  KvFormat format;
};

class SequenceAttentionTest : public testing::TestWithParam<Setup> {};

INSTANTIATE_TEST_SUITE_P(Backends, SequenceAttentionTest,
                         testing::Values(Setup{false, KvFormat::kF16}, Setup{true, KvFormat::kF16},
                                         Setup{true, KvFormat::kInt8}, Setup{true, KvFormat::kTurbo4}),
                         [](const auto& info) {
                           return std::string(info.param.dense ? "dense_" : "gather_") +
                                  std::string(format_name(info.param.format));
                         });

TEST_P(SequenceAttentionTest, EqualsPlainAttentionInDoublePrecision) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    // Chunks of 64 rows and more are worked on in tiles by the library.
    const test::RandomShape shape{
        .max_chunk = round % 4 == 0 ? 100 : 40, .sliding = round % 2 == 1, .both_ways = round % 5 < 2};
    test::AttentionCase c = test::random_case(shape, random);
    if (round % 3 == 0) c.heads.softcap = 0.7F;
    const test::PoolData pool(c, random(), GetParam().format);
    const std::vector<float> queries = test::make_queries(c, random());
    std::vector<float> expected(queries.size());
    std::vector<float> sinks;
    for (int h = 0; round % 5 == 0 && h < c.heads.n_head; ++h) sinks.push_back(0.5F * static_cast<float>(h % 7 - 3));
    attention::attend_reference(c.heads, pool.view, c.group, c.rows(), queries, expected, sinks);
    const std::vector<float> got = attend(c, pool, queries, GetParam().dense, sinks);
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double difference = std::abs(double{got[i]} - double{expected[i]});
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
    ASSERT_LT(worst, 2e-5) << "round " << round << ", block size " << c.block_size << ", window " << c.group.window;
  }
}

}  // namespace
}  // namespace coppice::executor
