// Every form a llama file takes, on tiny random models: all backends against libllama.
#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "executor/tiny.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"
#include "support/libllama.h"

namespace coppice {
namespace {

using test::ExecutorRig;
using test::load;
using test::random_tokens;
using test::RigSequence;
using test::Row;
using test::tiny_path;
using test::TinyModel;
using test::Want;

struct Variant {
  const char* name;
  TinyModel model;
  double tolerance;
  bool exact = false;  ///< libllama gets the same weights in f32: its products round rows coarsely for blocks of 256
};

// Quantised products round activations: a change in the last bit flips roundings, and ours on AMX round by other rules
// than libllama's.
constexpr double kQuantised = 7e-2;

class VariantTest : public testing::TestWithParam<Variant> {};

INSTANTIATE_TEST_SUITE_P(
    Llama, VariantTest,
    testing::Values(
        Variant{"tied", {}, 5e-3}, Variant{"untied", {.tied = false}, 5e-3}, Variant{"biases", {.biases = true}, 5e-3},
        Variant{"rope_factors", {.rope_factors = true}, 5e-3}, Variant{"many_kv_heads", {.n_kv_head = 4}, 5e-3},
        Variant{"wide_heads", {.head_dim = 32}, 5e-3}, Variant{"q4_0", {.matrix_type = 2, .tied = false}, kQuantised},
        Variant{"q4_0_tied", {.matrix_type = 2}, kQuantised}, Variant{"q8_0", {.matrix_type = 8}, kQuantised},
        Variant{"q4_1_biases", {.matrix_type = 3, .biases = true}, kQuantised},
        // As files of mixed quality have it: matrices that are multiplied together, and some that can't be.
        Variant{"mixed_v_and_up",
                {.matrix_type = 3, .other_types = {{"attn_v", 8}, {"ffn_up", 2}}, .biases = true},
                kQuantised},
        Variant{"mixed_q_and_gate",
                {.matrix_type = 8, .other_types = {{"attn_q", 0}, {"ffn_gate", 3}}, .biases = true},
                kQuantised},
        Variant{"q5_0_where_256_does_not_fit",
                {.matrix_type = 6, .other_types = {{"attn_v", 8}, {"ffn_down", 8}}},
                kQuantised},
        Variant{"q5_1_and_iq4_nl", {.matrix_type = 7, .other_types = {{"attn_k", 20}, {"ffn_up", 20}}}, kQuantised},
        Variant{"q4_k_m",
                {.n_embd = 256,
                 .head_dim = 64,
                 .n_ff = 256,
                 .matrix_type = 12,
                 .other_types = {{"attn_v", 14}, {"ffn_down", 14}, {"token_embd", 14}}},
                kQuantised,
                true},
        Variant{"q5_k_m_biases",
                {.n_embd = 256,
                 .head_dim = 64,
                 .n_ff = 512,
                 .matrix_type = 13,
                 .other_types = {{"attn_v", 14}, {"ffn_gate", 14}},
                 .biases = true},
                kQuantised,
                true},
        Variant{"iq4_xs_and_blocks_of_32",
                {.n_embd = 256,
                 .head_dim = 64,
                 .n_ff = 256,
                 .matrix_type = 23,
                 .other_types = {{"attn_q", 8}, {"ffn_up", 2}},
                 .tied = false},
                kQuantised,
                true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(VariantTest, AgreesWithLibllama) {
  const std::string path = tiny_path(GetParam().name, GetParam().model);
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, 90);
  std::string exact = path;
  if (GetParam().exact) {
    exact = (test::scratch_folder() / "exact.gguf").string();
    test::dequantize_gguf(path, exact);
  }
  test::Libllama reference(exact, false, 2);
  const auto expected = reference.feed(tokens, 90);
  for (const char* attention : {"dense", "gather", "tree"}) {
    const auto e = load(path, attention, 32, 2);
    ExecutorRig rig(*e, 5);
    RigSequence s;
    auto rows = rig.feed(s, std::span(tokens).first(70), 64, Want::kAll);
    for (Row& r : rig.feed(s, std::span(tokens).subspan(70), 1, Want::kAll)) rows.push_back(std::move(r));
    ASSERT_EQ(rows.size(), expected.size());
    double sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) sum += test::relative_rms(rows[i], expected[i]);

    EXPECT_LT(sum / static_cast<double>(rows.size()), GetParam().tolerance) << attention;
  }
}

}  // namespace
}  // namespace coppice
