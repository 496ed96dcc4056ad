// The portable path [K14]: a graph of operations that every ggml device has.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "executor/ggml/step_graph.h"
#include "support/gguf_writer.h"

namespace coppice::executor {
namespace {

/// A decoder of plain f32 matrices, which ggml multiplies by.
class PortableTest : public testing::Test {
 protected:
  static model::Model tiny() {
    const auto path = test::scratch_folder() / "portable.gguf";
    if (!std::filesystem::exists(path)) test::write_tiny_model({}, path);
    return model::load_model(path.string());
  }

  /// Nodes that only the CPU runs, in a step of four rows.
  int own_nodes(Attention& attention) {
    const DecoderParts parts{&model_.spec, &weights_, &store_, &attention, &rope_, groups_, {0, 0}, {0, 1}};
    const StepGraph graph(parts, {4, 1, {{{1, 4, {64}}, false}}});
    int n = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph.graph()); ++i) {
      const ggml_op op = ggml_graph_node(graph.graph(), i)->op;
      n += op == GGML_OP_CUSTOM || op == GGML_OP_MAP_CUSTOM1 || op == GGML_OP_MAP_CUSTOM2 || op == GGML_OP_MAP_CUSTOM3;
    }
    return n;
  }

  model::Model model_ = tiny();
  std::vector<kv::GroupSpec> groups_ = {{kv::GroupKind::kFull, 0, {0, 1}, std::size_t{2} * 2 * 2 * 16 * 2}};
  Weights weights_{model_, {}};
  KvStore store_{{.n_layer_slots = 2,
                  .n_kv_head = model_.spec.n_kv_head,
                  .head_dim = model_.spec.head_dim,
                  .block_size = 32,
                  .budget_bytes = std::size_t{1} << 20}};
  attention::Rope rope_{model_.spec.rope.dims, model_.spec.rope.base, model_.spec.rope.freq_scale, {}};
  AttentionConfig config_{&model_.spec, &store_, groups_};
};

TEST_F(PortableTest, GatherHasNoNodesOfOurOwn) {
  EXPECT_EQ(own_nodes(*make_gather_attention(config_)), 0);
}

TEST_F(PortableTest, DenseComparesWithOthersThanOurs) {
  EXPECT_EQ(own_nodes(*make_dense_attention(config_)), 0);
}

TEST_F(PortableTest, TreeHasThem) {  // or the other two tests would look for the wrong ones
  EXPECT_GT(own_nodes(*make_tree_attention(config_, 1)), 0);
}

}  // namespace
}  // namespace coppice::executor
