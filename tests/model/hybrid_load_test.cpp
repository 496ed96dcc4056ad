// Files of models with recurrent layers: what their specs say, and one clear sentence for what is missing or misshapen.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "model/complaint.h"
#include "support/family_models.h"
#include "support/gguf_writer.h"

namespace coppice::model {
namespace {

using test::TinyModel;

TinyModel hybrid(const std::string& name) {
  const auto models = test::hybrid_models();
  return std::ranges::find(models, name, &test::FamilyModel::name)->model;
}

std::string written(const TinyModel& model) {
  return test::write_tiny_model(model, test::scratch_folder() / "hybrid.gguf").string();
}

void expect_complaint(const TinyModel& model, const std::string& part) {
  const std::string said = complaint(written(model));
  EXPECT_NE(said.find(part), std::string::npos) << "said: " << said;
}

TEST(LoadHybrid, SpecsSayWhichLayersAttend) {
  const ModelSpec spec = load_model(written(hybrid("qwen35"))).spec;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    EXPECT_EQ(spec.layers[i].mixer.attends(), i == 3) << i;
    EXPECT_EQ(std::holds_alternative<LinearAttentionSpec>(spec.layers[i].recurrent), i != 3) << i;
  }
  EXPECT_TRUE(spec.layers[3].mixer.gate_in_q);
  const auto& mixer = std::get<LinearAttentionSpec>(spec.layers[0].recurrent);
  EXPECT_EQ(mixer.rule, StateRule::kDelta);
  EXPECT_EQ(mixer.n_heads, 6);
  EXPECT_EQ(mixer.conv.n_channels, (6 + 2 * 2) * 16);
  EXPECT_TRUE(mixer.in_turns);
  const ModelSpec next = load_model(written(hybrid("qwen3next"))).spec;
  EXPECT_FALSE(std::get<LinearAttentionSpec>(next.layers[0].recurrent).in_turns);
}

/// A file that names no layers has one of four that attends, or as many as it says.
TEST(LoadHybrid, AnIntervalStandsForAList) {
  TinyModel model = hybrid("qwen35");
  model.recurrent.listed = false;
  EXPECT_EQ(load_model(written(model)).spec.layers[3].mixer.heads.n_head, 4);
  model.recurrent.layers = {true, false, true, false};
  model.settings["full_attention_interval"] = 2;
  const ModelSpec spec = load_model(written(model)).spec;
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(spec.layers[i].mixer.attends(), i % 2 == 1) << i;
}

TEST(LoadHybrid, MissingAndMisshapenTensors) {
  for (const auto& [family, name] : {std::pair{"lfm2", "blk.0.shortconv.in_proj.weight"},
                                     {"lfm2", "blk.3.shortconv.conv.weight"},
                                     {"lfm2", "token_embd_norm.weight"},
                                     {"qwen35", "blk.0.attn_qkv.weight"},
                                     {"qwen35", "blk.1.ssm_alpha.weight"},
                                     {"qwen35", "blk.2.ssm_norm.weight"},
                                     {"qwen35", "blk.3.attn_q.weight"},
                                     {"qwen3next", "blk.0.ssm_ba.weight"},
                                     {"granitehybrid", "blk.0.ssm_in.weight"},
                                     {"granitehybrid", "blk.3.ssm_d"}}) {
    TinyModel model = hybrid(family);
    model.leave_out = name;
    expect_complaint(model, std::string("lacks the tensor ") + name);
    model.leave_out.clear();
    model.wrong_shape = name;
    expect_complaint(model, std::string("tensor ") + name + " has the shape");
  }
}

TEST(LoadHybrid, NumbersThatNoKernelServes) {
  TinyModel model = hybrid("qwen35");
  model.recurrent.taps = 5;
  expect_complaint(model, "qwen35.ssm.conv_kernel = 5: convolutions over 2 to 4 rows are built");
  model = hybrid("qwen35");
  model.recurrent.value_dim = 24;
  expect_complaint(model, "are not built");
  model = hybrid("qwen35");
  model.recurrent.n_heads = 5;
  expect_complaint(model, "5 states of 16 x 80/5 values over 2 key heads are not built");
  model = hybrid("lfm2");
  model.n_embd = 72;
  model.n_head = 9;
  model.n_kv_head = 3;
  model.head_dim = 8;
  expect_complaint(model, "72 channels");
}

TEST(LoadHybrid, SomeLayerMustAttend) {
  TinyModel model = hybrid("qwen35");
  model.recurrent.layers.assign(4, true);
  expect_complaint(model, "no layer attends");
}

TEST(LoadHybrid, MatricesMayBeQuantised) {
  TinyModel model = hybrid("qwen35");
  model.matrix_type = 8;  // Q8_0
  EXPECT_EQ(complaint(written(model)), "");
}

}  // namespace
}  // namespace coppice::model
