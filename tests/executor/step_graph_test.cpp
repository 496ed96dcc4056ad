// Step graphs: what nodes they are made of, and when one serves several steps.
#include "executor/ggml/graph/step_graph.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "executor/ggml/graph/attention.h"
#include "executor/ggml/graph/graph_runner.h"
#include "executor/ggml/store/ggml_abort.h"
#include "executor/ggml/store/ggml_ptr.h"
#include "support/gguf_writer.h"

namespace coppice::executor {
namespace {

using attention::KvFormat;

constexpr int kGraphBlock = 32;
constexpr std::size_t kPool = std::size_t{1} << 20;

/// A decoder of plain f32 matrices, which ggml multiplies.
class StepGraphTest : public testing::Test {
 protected:
  static model::Model tiny() {
    const auto path = test::scratch_folder() / "step_graph.gguf";
    if (!std::filesystem::exists(path)) test::write_tiny_model({}, path);
    return model::load_model(path.string());
  }
  PageLayout layout(KvFormat format) const { return make_page_layout(kv_layers(model_.spec), format, kGraphBlock); }
  AttentionConfig attention(const KvStore& store) const {
    return {&store, attention_groups(model_.spec, store.layout().groups)};
  }
  DecoderParts parts(const KvStore& store, Attention& attention) const {
    return {&model_.spec, &weights_, &store, &attention, &ropes_, {{0, 0}, {0, 1}}};
  }

  /// Rows of one sequence on the blocks of `table`; the logits of the last one are wanted.
  Batch batch(int first_position, int n_rows, const std::vector<kv::BlockId>& table) const {
    Batch b;
    b.rows.assign(static_cast<std::size_t>(n_rows), 1);
    b.sequences.push_back({n_rows, first_position, {{table, kGraphBlock}}});
    b.logit_rows = {n_rows - 1};
    return b;
  }

  /// Nodes of our own in a step of four rows.
  int own_nodes(const KvStore& store, Attention& attention) const {
    const DecoderParts p = parts(store, attention);
    const std::vector<kv::BlockId> table = {3, 1};
    const StepGraph graph(p, batch(40, 4, table), {4, 1});
    int n = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph.graph()); ++i) {
      const ggml_op op = ggml_graph_node(graph.graph(), i)->op;
      n += op == GGML_OP_CUSTOM || op == GGML_OP_MAP_CUSTOM1 || op == GGML_OP_MAP_CUSTOM2 || op == GGML_OP_MAP_CUSTOM3;
    }
    return n;
  }

  model::Model model_ = tiny();
  Weights weights_{model_, {}};
  KvStore store_{layout(KvFormat::kF16), kPool};
  std::vector<attention::Rope> ropes_{attention::Rope({.dims = model_.spec.ropes[0].dims})};
};

TEST_F(StepGraphTest, GatherIsMadeOfTheLibrarysOperators) {
  EXPECT_EQ(own_nodes(store_, *make_gather_attention(attention(store_))), 0);
}

TEST_F(StepGraphTest, DenseIsMadeOfTheLibrarysOperatorsWhereTheyKnowTheFormat) {
  EXPECT_EQ(own_nodes(store_, *make_dense_attention(attention(store_))), 0);
  const KvStore int8(layout(KvFormat::kInt8), kPool);
  EXPECT_GT(own_nodes(int8, *make_dense_attention(attention(int8))), 0);
}

TEST_F(StepGraphTest, TreeHasNodesOfOurOwn) {  // or the tests above would look for the wrong ones
  EXPECT_GT(own_nodes(store_, *make_tree_attention(attention(store_), 1)), 0);
}

TEST_F(StepGraphTest, OneGraphOfTheTreeServesAllTablesAndPositions) {
  const auto tree = make_tree_attention(attention(store_), 1);
  const DecoderParts p = parts(store_, *tree);
  GraphRunner runner(1);
  const std::vector<kv::BlockId> short_table = {3}, long_table = {7, 2, 5};
  // The largest shape comes first: a graph that needs more working memory than all before it drops the others.
  const StepGraph* large = &runner.prepare(p, batch(60, 21, long_table));
  const StepGraph* small = &runner.prepare(p, batch(0, 17, short_table));
  EXPECT_EQ(small->shape(), (StepShape{20, 1}));  // few shapes: rows are padded
  EXPECT_EQ(&runner.prepare(p, batch(60, 19, long_table)), small);
  EXPECT_EQ(&runner.prepare(p, batch(0, 22, short_table)), large);
  EXPECT_EQ(&runner.prepare(p, batch(60, 20, long_table)), small);
}

TEST_F(StepGraphTest, ReferencesPadNothing) {
  const std::vector<kv::BlockId> table = {3};
  for (const auto& attention : {make_dense_attention(attention(store_)), make_gather_attention(attention(store_))}) {
    EXPECT_EQ(shape_of(batch(0, 17, table), *attention), (StepShape{17, 1})) << attention->name();
  }
}

/// Of a step of four rows.
int nodes_of(const test::TinyModel& tiny, const std::string& name) {
  const auto path = test::scratch_folder() / (name + ".gguf");
  test::write_tiny_model(tiny, path);
  const model::Model model = model::load_model(path.string());
  const Weights weights(model, {});
  const KvStore store(make_page_layout(kv_layers(model.spec), KvFormat::kF16, kGraphBlock), kPool);
  const auto tree = make_tree_attention({&store, attention_groups(model.spec, store.layout().groups)}, 1);
  const std::vector<attention::Rope> ropes{attention::Rope({.dims = model.spec.ropes[0].dims})};
  const DecoderParts parts{&model.spec, &weights, &store, tree.get(), &ropes, {{0, 0}, {0, 1}}};
  const std::vector<kv::BlockId> table = {3, 1};
  Batch b;
  b.rows.assign(4, 1);
  b.sequences.push_back({4, 40, {{table, kGraphBlock}}});
  b.logit_rows = {3};
  return ggml_graph_n_nodes(StepGraph(parts, b, {4, 1}).graph());
}

TEST(MixedTypes, TakeNoMoreNodesThanOneType) {
  if (!matmul::QuantMatrix::supported()) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
  test::TinyModel tiny{.n_embd = 256, .head_dim = 64, .n_ff = 256, .matrix_type = GGML_TYPE_Q4_K, .tied = false};
  const int nodes = nodes_of(tiny, "one_type");
  tiny.other_types = {{"attn_v", GGML_TYPE_Q6_K}, {"ffn_down", GGML_TYPE_Q6_K}, {"ffn_up", GGML_TYPE_Q8_0}};
  EXPECT_EQ(nodes_of(tiny, "mixed_types"), nodes);
  tiny.other_types = {{"attn_v", GGML_TYPE_F32}};  // or this test would count something else
  EXPECT_GT(nodes_of(tiny, "not_packed"), nodes);
}

/// It aborts the process by default, and calls a debugger.
TEST(GgmlAbortTest, WhatGgmlGivesUpOnFailsTheStepAndNotTheProcess) {
  take_ggml_aborts();
  const ContextPtr context = make_context(8);
  const auto multiply_what_does_not_fit = [&] {
    const GgmlThrows throws;
    ggml_mul_mat(context.get(), ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 2, 2),
                 ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 3, 2));
  };
  EXPECT_THROW(multiply_what_does_not_fit(), StepError);
  EXPECT_THROW(multiply_what_does_not_fit(), StepError) << "no lock is held";
  EXPECT_NE(ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 8), nullptr);
}

TEST(GgmlAbortTest, OutsideOfAStepItEndsTheProcessWithALine) {
  take_ggml_aborts();
  EXPECT_EXIT(GGML_ABORT("no %s", "way"), ::testing::ExitedWithCode(1),
              "coppice: The tensor library cannot go on: .*no way");
}

}  // namespace
}  // namespace coppice::executor
