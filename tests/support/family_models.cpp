#include "support/family_models.h"

#include <algorithm>
#include <iterator>

namespace coppice::test {

namespace {

using Settings = std::map<std::string, TinySetting>;

const Settings kYarn = {
    {"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0F}, {"rope.scaling.original_context_length", 128}};

Settings with(Settings settings, const Settings& more) {
  settings.insert(more.begin(), more.end());
  return settings;
}

std::vector<FamilyModel> llamas() {
  return {
      {"llama3", {.rope_factors = true, .settings = {{"rope.freq_base", 500000.0F}}}},
      {"llama_linear", {.settings = {{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 4.0F}}}},
      {"llama_yarn", {.settings = kYarn}},
      {"mistral3",
       {.architecture = "mistral3",
        .head_dim = 32,
        .settings = {{"rope.freq_base", 1000000.0F},
                     {"rope.scaling.type", "yarn"},
                     {"rope.scaling.factor", 16.0F},
                     {"rope.scaling.original_context_length", 32},
                     {"rope.scaling.yarn_beta_fast", 32.0F},
                     {"rope.scaling.yarn_beta_slow", 1.0F},
                     {"rope.scaling.yarn_log_multiplier", 1.0F},
                     {"attention.temperature_scale", 0.3F}}}},
      {"granite",
       {.architecture = "granite",
        .settings =
            {{"embedding_scale", 3.0F}, {"residual_scale", 0.4F}, {"logit_scale", 2.5F}, {"attention.scale", 0.1F}}}},
      {"granite_no_rope",
       {.architecture = "granite", .settings = {{"logit_scale", 2.0F}, {"rope.scaling.finetuned", false}}}},
      {"minicpm", {.architecture = "minicpm", .tied = false, .settings = {{"logit_scale", 2.5F}}}},
      {"minicpm_scales",
       {.architecture = "minicpm",
        .settings = {{"embedding_scale", 3.0F}, {"residual_scale", 0.4F}, {"logit_scale", 0.5F}}}},
      {"internlm2", {.architecture = "internlm2", .tied = false, .settings = {{"rope.freq_base", 1000000.0F}}}},
      {"ernie4_5", {.architecture = "ernie4_5", .head_dim = 32, .settings = {{"rope.freq_base", 500000.0F}}}},
      {"smollm3",
       {.architecture = "smollm3", .n_layer = 5, .qk_spread = 0.15F, .settings = {{"rope.freq_base", 5000000.0F}}}}};
}

std::vector<FamilyModel> qwens() {
  return {{"qwen2", {.architecture = "qwen2", .qkv_biases = true, .settings = {{"rope.freq_base", 1000000.0F}}}},
          {"qwen2_untied_yarn",
           {.architecture = "qwen2", .qkv_biases = true, .output_bias = true, .tied = false, .settings = kYarn}},
          {"qwen3",
           {.architecture = "qwen3",
            .head_dim = 32,
            .qk_norm = TinyQkNorm::kHeads,
            .settings = {{"rope.freq_base", 1000000.0F}}}},
          {"qwen2vl",
           {.architecture = "qwen2vl",
            .qkv_biases = true,
            .settings = {{"rope.freq_base", 1000000.0F}, {"rope.dimension_sections", std::vector{2, 3, 3, 0}}}}},
          {"qwen3vl",
           {.architecture = "qwen3vl",
            .head_dim = 32,
            .qk_norm = TinyQkNorm::kHeads,
            .settings = {{"rope.freq_base", 1000000.0F}, {"rope.dimension_sections", std::vector{6, 5, 5, 0}}}}}};
}

std::vector<FamilyModel> mixtures() {
  return {{"mixtral", {.tied = false, .experts = {.n = 8, .n_ff = 128}}},
          {"qwen2moe",
           {.architecture = "qwen2moe",
            .n_layer = 3,
            .qkv_biases = true,
            .tied = false,
            .experts = {.n = 12, .n_used = 4, .shared_ff = 128, .shared_gate = true}}},
          {"qwen3moe",
           {.architecture = "qwen3moe",
            .n_layer = 3,
            .head_dim = 32,
            .qk_norm = TinyQkNorm::kHeads,
            .tied = false,
            .experts = {.n = 16, .n_used = 4},
            .settings = {{"rope.freq_base", 1000000.0F}}}},
          {"qwen3vlmoe",
           {.architecture = "qwen3vlmoe",
            .n_layer = 3,
            .head_dim = 32,
            .qk_norm = TinyQkNorm::kHeads,
            .tied = false,
            .experts = {.n = 16, .n_used = 4},
            .settings = {{"rope.freq_base", 1000000.0F}, {"rope.dimension_sections", std::vector{6, 5, 5, 0}}}}},
          {"glm4moe",
           {.architecture = "glm4moe",
            .n_layer = 3,
            .qkv_biases = true,
            .rope_dims = 8,
            .qk_norm = TinyQkNorm::kHeads,
            .feed_forward_norm = "post_attention_norm",
            .tied = false,
            .experts = {.n = 8, .n_used = 3, .first_layer = 1, .selection_bias = true, .shared_ff = 64},
            .settings = {{"leading_dense_block_count", 1},
                         {"expert_shared_count", 1},
                         {"expert_weights_scale", 1.7F},
                         {"expert_weights_norm", true},
                         {"expert_gating_func", 2}}}},
          {"gpt_oss",
           {.architecture = "gpt-oss",
            .n_layer = 4,
            .head_dim = 32,
            .n_ff = 64,
            .biases = true,
            .feed_forward_norm = "post_attention_norm",
            .qk_spread = 0.15F,
            .sinks = true,
            .tied = false,
            .experts = {.n = 8, .n_used = 3, .biases = true},
            .settings = with(kYarn, {{"attention.sliding_window", 13},
                                     {"rope.freq_base",
                                      415.01407F}})}}};  // YaRN's ramp ends at pair 8: libllama knows only whole ones
}

std::vector<FamilyModel> others() {
  const TinyModel phi3 = {.architecture = "phi3",
                          .long_and_short = true,
                          .rope_dims = 12,
                          .fused_qkv = true,
                          .fused_gate = true,
                          .tied = false,
                          .settings = {{"rope.scaling.attn_factor", 1.2F}}};
  TinyModel long_phi3 = phi3;
  long_phi3.settings["rope.scaling.original_context_length"] = 64;
  const TinyModel olmo2 = {.architecture = "olmo2",
                           .qk_norm = TinyQkNorm::kWhole,
                           .norms_before = false,
                           .norms_behind = true,
                           .tied = false,
                           .settings = {{"rope.freq_base", 500000.0F}}};
  TinyModel olmo3 = olmo2;
  olmo3.n_layer = 5;
  olmo3.settings = with(kYarn, {{"attention.sliding_window", 9},
                                {"attention.sliding_window_pattern", std::vector{true, true, false, true, false}}});
  const TinyModel llama4 = {.architecture = "llama4",  // libllama's chunks are longer than the context
                            .n_layer = 5,
                            .tied = false,
                            .settings = {{"expert_count", 2},
                                         {"expert_used_count", 1},
                                         {"expert_feed_forward_length", 32},
                                         {"interleave_moe_layer_step", 0}}};
  const TinyModel granite_swa = {.architecture = "granite_swa",
                                 .n_layer = 5,
                                 .slides = {false, true, true, true, false},
                                 .sinks = true,
                                 .settings = {{"attention.sliding_window", 11},
                                              {"embedding_scale", 3.0F},
                                              {"residual_scale", 0.4F},
                                              {"logit_scale", 2.5F},
                                              {"attention.scale", 0.2F}}};
  const TinyModel spark = {
      .architecture = "spark2_5",
      .n_layer = 4,
      .head_dim = 32,
      .rope_dims = 16,
      .qk_spread = 0.15F,
      .slides = {true, false, true, false},
      .gate = TinyGate::kHeads,
      .settings = {{"attention.sliding_window", 13}, {"rope.dimension_count_swa", 24}, {"rope.freq_base_swa", 500.0F}}};
  const TinyModel muse = {
      .architecture = "muse-glimmer",
      .n_layer = 4,
      .qk_norm = TinyQkNorm::kHeads,
      .norms_behind = true,
      .gate = TinyGate::kValues,
      .tied = false,
      .settings = {{"attention.sliding_window", 13}, {"logit_scale", 0.4F}, {"final_logit_softcapping", 5.0F}}};
  const TinyModel glm4 = {.architecture = "glm4",
                          .qkv_biases = true,
                          .rope_dims = 8,
                          .norms_behind = true,
                          .fused_gate = true,
                          .tied = false};
  const TinyModel exaone4 = {.architecture = "exaone4",
                             .rope_factors = true,
                             .qk_norm = TinyQkNorm::kHeads,
                             .norms_before = false,
                             .norms_behind = true};
  TinyModel sliding = exaone4;  // of 64 layers: libllama knows windows in the model of that size only
  sliding.n_layer = 64;
  sliding.n_embd = 32;
  sliding.n_head = 2;
  sliding.n_ff = 32;
  sliding.settings = {{"attention.sliding_window", 11}};
  TinyModel llama4_experts = llama4;
  llama4_experts.n_layer = 4;
  llama4_experts.experts = {.n = 6, .n_used = 1, .every = 2, .shared_ff = 64};
  llama4_experts.settings = {{"interleave_moe_layer_step", 2}};
  return {{"exaone4", exaone4},   {"exaone4_sliding", sliding}, {"glm4", glm4},
          {"phi3", phi3},         {"phi3_long", long_phi3},     {"olmo2", olmo2},
          {"olmo3", olmo3},       {"granite_swa", granite_swa}, {"spark2_5", spark},
          {"muse_glimmer", muse}, {"llama4", llama4},           {"llama4_experts", llama4_experts}};
}

std::vector<FamilyModel> gemmas() {
  const TinyModel gemma2 = {
      .architecture = "gemma2",
      .n_layer = 4,
      .norms_behind = true,
      .settings = {
          {"attention.sliding_window", 13}, {"attn_logit_softcapping", 3.0F}, {"final_logit_softcapping", 5.0F}}};
  TinyModel gemma3 = gemma2;
  gemma3.architecture = "gemma3";
  gemma3.n_layer = 7;
  gemma3.head_dim = 32;
  gemma3.n_kv_head = 1;
  gemma3.qk_norm = TinyQkNorm::kHeads;
  gemma3.settings = {{"attention.sliding_window", 40},
                     {"rope.freq_base", 1000000.0F},
                     {"rope.scaling.type", "linear"},
                     {"rope.scaling.factor", 8.0F}};
  const TinyModel gemma4 = {.architecture = "gemma4",  // as 31B
                            .n_layer = 6,
                            .n_kv_head = 1,
                            .head_dim = 32,
                            .rope_factors = true,
                            .qk_norm = TinyQkNorm::kHeads,
                            .norms_behind = true,
                            .slides = {true, true, false, true, true, false},
                            .sliding_kv_heads = 2,
                            .sliding_head_dim = 16,
                            .values_are_keys = true,
                            .layer_scales = true,
                            .settings = {{"attention.sliding_window", 13},
                                         {"rope.freq_base", 1000000.0F},
                                         {"final_logit_softcapping", 5.0F},
                                         {"embedding_length_per_layer_input", 0}}};
  TinyModel gemma4_shared = gemma4;  // as E2B
  gemma4_shared.settings.erase("embedding_length_per_layer_input");
  gemma4_shared.n_layer = 7;
  gemma4_shared.slides = {true, false, true, false, true, true, false};
  gemma4_shared.sliding_kv_heads = 1;
  gemma4_shared.values_are_keys = false;
  gemma4_shared.shared_kv = 3;
  gemma4_shared.token_inputs = 32;
  TinyModel gemma4_experts = gemma4;  // as 26B-A4B
  gemma4_experts.experts = {.n = 8, .n_used = 3, .shared_ff = 128, .own_norms = true};
  return {{"gemma", {.architecture = "gemma", .n_kv_head = 1, .head_dim = 32}},
          {"gemma2", gemma2},
          {"gemma3", gemma3},
          {"gemma4", gemma4},
          {"gemma4_shared", gemma4_shared},
          {"gemma4_experts", gemma4_experts}};
}

}  // namespace

std::vector<FamilyModel> hybrid_models() {
  const TinyModel lfm2 = {
      .architecture = "lfm2",
      .n_layer = 5,
      .qk_norm = TinyQkNorm::kHeads,
      .recurrent = {.mixer = TinyMixer::kShortConv, .layers = {true, true, false, true, false}, .taps = 3},
      .output_norm = "token_embd_norm",
      .settings = {{"rope.freq_base", 1000000.0F}}};
  TinyModel lfm2_window = lfm2;
  lfm2_window.recurrent.layers = {false, true, true, false, true};  // nothing attends behind the last state
  lfm2_window.settings["attention.sliding_window"] = 21;
  TinyModel lfm2moe = lfm2;
  lfm2moe.architecture = "lfm2moe";
  lfm2moe.experts = {.n = 8, .n_used = 3, .first_layer = 2, .selection_bias = true};
  lfm2moe.settings = {{"leading_dense_block_count", 2}, {"expert_gating_func", 2}};
  const TinyModel qwen35 = {
      .architecture = "qwen35",
      .n_layer = 4,
      .head_dim = 32,
      .rope_dims = 8,
      .qk_norm = TinyQkNorm::kHeads,
      .feed_forward_norm = "post_attention_norm",
      .tied = false,
      .recurrent = {.mixer = TinyMixer::kDelta, .layers = {true, true, true, false}, .n_heads = 6},
      .gate_in_q = true,
      .settings = {{"rope.freq_base", 1000000.0F}, {"rope.dimension_sections", std::vector{2, 1, 1, 0}}}};
  TinyModel qwen35_last =
      qwen35;  // a state is written behind all keys; heads of other sizes, and one key head for each
  qwen35_last.recurrent = {
      .mixer = TinyMixer::kDelta, .layers = {true, false, true, true}, .n_heads = 2, .key_dim = 32, .value_dim = 32};
  TinyModel qwen35moe = qwen35;
  qwen35moe.architecture = "qwen35moe";
  qwen35moe.experts = {.n = 8, .n_used = 3, .shared_ff = 64, .shared_gate = true};
  TinyModel qwen3next = qwen35moe;
  qwen3next.architecture = "qwen3next";
  qwen3next.settings.erase("rope.dimension_sections");
  qwen3next.recurrent.mixer = TinyMixer::kDeltaOneGates;
  const TinyModel granite = {.architecture = "granitehybrid",
                             .n_layer = 4,
                             .recurrent = {.mixer = TinyMixer::kMamba2,
                                           .layers = {true, true, false, true},
                                           .n_heads = 8,
                                           .n_key_heads = 1,
                                           .key_dim = 32},
                             .settings = {{"embedding_scale", 3.0F},
                                          {"residual_scale", 0.4F},
                                          {"logit_scale", 2.5F},
                                          {"attention.scale", 0.1F},
                                          {"rope.scaling.finetuned", false}}};
  TinyModel granite_experts = granite;
  granite_experts.recurrent.n_key_heads = 2;
  granite_experts.experts = {.n = 8, .n_used = 3, .n_ff = 128, .shared_ff = 64};
  std::vector<FamilyModel> all = {
      {"lfm2", lfm2},           {"lfm2_window", lfm2_window}, {"lfm2moe", lfm2moe},
      {"qwen35", qwen35},       {"qwen35_last", qwen35_last}, {"qwen35moe", qwen35moe},
      {"qwen3next", qwen3next}, {"granitehybrid", granite},   {"granitehybrid_experts", granite_experts}};
  for (FamilyModel& m : all) m.model.norm_spread = 0.3F;
  return all;
}

std::vector<FamilyModel> family_models() {
  std::vector<FamilyModel> all;
  for (auto& models : {llamas(), qwens(), mixtures(), others(), gemmas()})
    std::ranges::copy(models, std::back_inserter(all));
  for (FamilyModel& m : all) m.model.norm_spread = 0.3F;
  return all;
}

}  // namespace coppice::test
