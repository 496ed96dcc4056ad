// A new family: a line below with its DecoderTraits (decoder_reader.h: norms, rotation, activation, experts). What
// traits don't say, such as scales, epsilons and windows, a finish_...() sets in ModelSpec, which has many of these
// already. Tests: a model in tests/support/family_models.cpp, and a case in tests/oracle if transformers has the
// family. A row in docs/models.md.
#include "model/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/decoder_reader.h"
#include "model/layer_pattern.h"
#include "model/load_error.h"

namespace coppice::model {

namespace {

struct Family {
  std::string_view architecture;
  DecoderTraits traits;
  /// What the family does beyond its traits. May be nullptr.
  void (*finish)(const Metadata& metadata, ModelSpec& spec) = nullptr;
};

/// Layers that know no positions: the file says which, or the last one of each so many.
void leave_out_ropes(const Metadata& m, ModelSpec& spec, std::size_t each) {
  const auto with_rope = m.list("attention.rope_pattern", static_cast<int>(spec.layers.size()));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (with_rope ? (*with_rope)[i] == 0 : (i + 1) % each == 0) spec.layers[i].mixer.rope = AttentionSpec::kNoRope;
  }
}

void finish_mistral3(const Metadata& m, ModelSpec& spec) {
  spec.temperature.scale = m.number("attention.temperature_scale", 0.0F);
  spec.temperature.length = m.size("rope.scaling.original_context_length", 1 << 30, spec.context_length);
  for (LayerSpec& layer : spec.layers) layer.mixer.sharpened = true;
}

/// Layers with chunks have positions, and norms of heads unless the model is the one with 128 experts; the others have
/// neither, and sharpened queries. Files without chunks are of models that turn all positions; none of these could be
/// tried.
void finish_llama4(const Metadata& m, ModelSpec& spec) {
  constexpr int kChunk = 8192;
  if (m.file().integer(m.key("attention.sliding_window")).value_or(kChunk) == 0) {
    m.refuse("{} = 0: layers without chunks are not built yet", m.key("attention.sliding_window"));
  }
  RopeSpec local = spec.ropes[0];
  local.base = m.number("rope.freq_base_swa", local.base);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, kChunk), .full_every = 4, .rope = local, .chunked = true});
  leave_out_ropes(m, spec, 4);
  spec.temperature = {.scale = m.number("attention.temperature_scale", 0.1F),
                      .length = m.size("attention.temperature_length", 1 << 30, kChunk),
                      .offset = 1};
  const bool norms = m.file().integer(m.key("expert_count")).value_or(0) != 128;
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& mixer = layer.mixer;
    mixer.sharpened = mixer.rope == AttentionSpec::kNoRope;
    if (norms && !mixer.sharpened) mixer.q_norm = mixer.k_norm = kUnitNorm;
  }
}

/// The first versions of Phi-3 see a window in all layers; later files say 0.
void finish_phi3(const Metadata& m, ModelSpec& spec) {
  const int window = window_of(m, spec, 0);
  for (LayerSpec& layer : spec.layers) layer.mixer.window = window;
}

/// What the file says, else these. Logits are divided by theirs.
void set_scales(const Metadata& m, ModelSpec& spec, float embedding, float residual, float logits) {
  spec.embedding_scale = m.factor("embedding_scale", embedding);
  spec.residual_scale = m.factor("residual_scale", residual);
  spec.logit_scale = 1.0F / m.factor("logit_scale", logits);
  if (!std::isfinite(spec.logit_scale)) m.refuse("logits divided by {} make no sense", m.number("logit_scale"));
}

/// Old files don't state their scales.
void finish_minicpm(const Metadata& m, ModelSpec& spec) {
  const float depth = std::sqrt(static_cast<float>(spec.layers.size()));
  set_scales(m, spec, 12.0F, 1.4F / depth, static_cast<float>(spec.n_embd) / 256.0F);
}

void finish_granite(const Metadata& m, ModelSpec& spec) {
  set_scales(m, spec, 1.0F, 1.0F, 1.0F);
  if (m.truth("rope.scaling.finetuned", true)) return;
  for (LayerSpec& layer : spec.layers) layer.mixer.rope = AttentionSpec::kNoRope;
}

/// Olmo 3 has the same architecture: some of its layers slide, and in these positions are not scaled.
void finish_olmo2(const Metadata& m, ModelSpec& spec) {
  RopeSpec local = spec.ropes[0];
  local.base = m.number("rope.freq_base_swa", local.base);
  local.freq_scale = local.magnitude = 1;
  local.yarn.reset();
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 4, .rope = local});
}

/// In models whose layers slide, the others know no positions.
void finish_exaone4(const Metadata& m, ModelSpec& spec) {
  RopeSpec local = spec.ropes[0];
  local.base = m.number("rope.freq_base_swa", local.base);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 4, .rope = local});
  const bool slides = std::ranges::any_of(spec.layers, [](const LayerSpec& l) { return l.mixer.window > 0; });
  for (LayerSpec& layer : spec.layers) {
    if (slides && layer.mixer.window == 0) layer.mixer.rope = AttentionSpec::kNoRope;
  }
}

void finish_muse_glimmer(const Metadata& m, ModelSpec& spec) {
  finish_exaone4(m, spec);
  spec.embedding_norm = kUnitNorm;
  spec.norm_eps_behind = 1e-8F;
  spec.logit_scale = m.number("logit_scale");
  spec.logit_softcap = m.number("final_logit_softcapping", 0.0F);
}

void finish_spark(const Metadata& m, ModelSpec& spec) {
  RopeSpec local = spec.ropes[0];
  local.base = m.number("rope.freq_base_swa", local.base);
  local.dims = m.size("rope.dimension_count_swa", 1 << 12, local.dims);
  if (local.dims % 2 != 0) m.refuse("{} = {} is odd", m.key("rope.dimension_count_swa"), local.dims);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 1, .rope = local});
}

/// Every other layer slides; all stretch their positions.
void finish_gpt_oss(const Metadata& m, ModelSpec& spec) {
  if (spec.ropes[0].yarn) spec.ropes[0].yarn->whole_pairs = false;
  RopeSpec local = spec.ropes[0];
  local.base = m.number("rope.freq_base_swa", local.base);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 2, .rope = local});
}

void finish_smollm3(const Metadata& m, ModelSpec& spec) {
  leave_out_ropes(m, spec, 4);
}

void finish_granite_swa(const Metadata& m, ModelSpec& spec) {
  finish_granite(m, spec);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 1, .rope = spec.ropes[0]});
  leave_out_ropes(m, spec, spec.layers.size() + 1);
}

/// In some files all layers that attend see a window.
void finish_lfm2(const Metadata& m, ModelSpec& spec) {
  const int window = window_of(m, spec, 0);
  for (LayerSpec& layer : spec.layers) layer.mixer.window = layer.mixer.attends() ? window : 0;
}

void finish_gemma1(const Metadata&, ModelSpec& spec) {
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.n_embd));
}

/// Gemma 2 and 3. The largest model of both divides scores by another size than its heads'; files don't say so.
void finish_gemma(const Metadata& m, ModelSpec& spec, std::size_t layers_of_largest) {
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.n_embd));
  const HeadsSpec& heads = spec.layers[0].mixer.heads;
  const int divisor = spec.layers.size() == layers_of_largest ? spec.n_embd / heads.n_head : heads.head_dim;
  if (divisor == 0) m.refuse("{} heads over {} values of an embedding make no sense", heads.n_head, spec.n_embd);
  spec.attention_scale = 1.0F / std::sqrt(static_cast<float>(divisor));
  spec.logit_softcap = m.number("final_logit_softcapping", spec.logit_softcap);
}

void finish_gemma2(const Metadata& m, ModelSpec& spec) {
  spec.logit_softcap = 30;
  finish_gemma(m, spec, 46);
  spec.attention_softcap = m.number("attn_logit_softcapping", 50.0F);
  RopeSpec local = spec.ropes[0];
  local.base = m.number("rope.freq_base_swa", local.base);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 4096), .full_every = 2, .rope = local});
}

/// Only the layers that see everything stretch their positions.
void finish_gemma3(const Metadata& m, ModelSpec& spec) {
  finish_gemma(m, spec, 62);
  RopeSpec local{.halves = true, .dims = spec.ropes[0].dims};
  local.base = m.number("rope.freq_base_swa", 10000.0F);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 6, .rope = local});
}

/// Layers that slide have heads of another size.
void finish_gemma4(const Metadata& m, ModelSpec& spec) {
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.n_embd));
  spec.logit_softcap = m.number("final_logit_softcapping", 0.0F);
  int head_dim = spec.ropes[0].dims;
  for (const LayerSpec& layer : spec.layers) head_dim = std::min(head_dim, layer.mixer.heads.head_dim);
  RopeSpec local{.halves = true, .dims = m.size("rope.dimension_count_swa", head_dim, head_dim)};
  if (local.dims % 2 != 0) m.refuse("{} = {} is odd", m.key("rope.dimension_count_swa"), local.dims);
  local.base = m.number("rope.freq_base_swa", 10000.0F);
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 6, .rope = local});
  for (LayerSpec& layer : spec.layers) layer.mixer.causal = layer.mixer.window == 0;
}

constexpr DecoderTraits kGemma2 = {.rope_halves = true, .norms_behind = true, .activation = Activation::kGelu};

constexpr DecoderTraits kGemma3 = [] {
  DecoderTraits traits = kGemma2;
  traits.qk_norm = QkNorm::kHeads;
  return traits;
}();

constexpr DecoderTraits kGemma4 = [] {
  DecoderTraits traits = kGemma3;
  traits.v_norm = true;
  traits.attention_scale = 1;
  traits.experts = ExpertTraits{};
  return traits;
}();

constexpr DecoderTraits kLfm2 = {.rope_halves = true,
                                 .qk_norm = QkNorm::kHeads,
                                 .output_norm = "token_embd_norm",
                                 .experts = ExpertTraits{.gating = Gating::kSigmoid},
                                 .recurrent = RecurrentKind::kShortConv};

constexpr DecoderTraits kQwen35 = {.rope_halves = true,
                                   .qk_norm = QkNorm::kHeads,
                                   .feed_forward_norm = "post_attention_norm",
                                   .experts = ExpertTraits{},
                                   .recurrent = RecurrentKind::kDelta,
                                   .gate_in_q = true,
                                   .rope_axes = RopeAxes::kInterleaved};

constexpr DecoderTraits kQwen3Next = [] {
  DecoderTraits traits = kQwen35;
  traits.recurrent = RecurrentKind::kDeltaOneGates;
  return traits;
}();

constexpr std::array kFamilies{
    Family{"llama", {.experts = ExpertTraits{}}},  // Llama, Mistral, Mixtral, SmolLM and their many children
    Family{"internlm2", {}},
    Family{"ernie4_5", {}},
    Family{"qwen2", {.rope_halves = true}},
    Family{"qwen2moe", {.rope_halves = true, .experts = ExpertTraits{.normalised = false}}},
    Family{"qwen3", {.rope_halves = true, .qk_norm = QkNorm::kHeads}},
    Family{"qwen3moe", {.rope_halves = true, .qk_norm = QkNorm::kHeads, .experts = ExpertTraits{}}},
    Family{"qwen2vl", {.rope_halves = true, .rope_axes = RopeAxes::kSideBySide}},  // Qwen2-VL, Qwen2.5-VL
    Family{"qwen3vl", {.rope_halves = true, .qk_norm = QkNorm::kHeads, .rope_axes = RopeAxes::kInterleaved}},
    Family{"qwen3vlmoe",
           {.rope_halves = true,
            .qk_norm = QkNorm::kHeads,
            .experts = ExpertTraits{},
            .rope_axes = RopeAxes::kInterleaved}},
    Family{"qwen3next", kQwen3Next},
    Family{"qwen35", kQwen35},
    Family{"qwen35moe", kQwen35},
    Family{"lfm2", kLfm2, finish_lfm2},
    Family{"lfm2moe", kLfm2, finish_lfm2},
    Family{"mistral3", {}, finish_mistral3},
    Family{"llama4",
           {.experts = ExpertTraits{.gating = Gating::kSigmoid, .normalised = false, .weighs_inputs = true}},
           finish_llama4},
    Family{"phi3", {.rope_halves = true}, finish_phi3},
    Family{"minicpm", {}, finish_minicpm},
    Family{"granite", {}, finish_granite},
    Family{"granitehybrid", {.experts = ExpertTraits{}, .recurrent = RecurrentKind::kMamba2}, finish_granite},
    Family{"granite_swa", {}, finish_granite_swa},
    Family{"seed_oss", {.rope_halves = true, .feed_forward_norm = "post_attention_norm"}},
    Family{"olmo2",
           {.rope_halves = true, .qk_norm = QkNorm::kWhole, .norms_before = false, .norms_behind = true},
           finish_olmo2},
    Family{"exaone4",
           {.rope_halves = true, .qk_norm = QkNorm::kHeads, .norms_before = false, .norms_behind = true},
           finish_exaone4},
    Family{"smollm3", {}, finish_smollm3},
    Family{"gpt-oss",
           {.rope_halves = true,
            .feed_forward_norm = "post_attention_norm",
            .activation = Activation::kClamped,
            .experts = ExpertTraits{.gating = Gating::kSoftmaxOfChosen}},
           finish_gpt_oss},
    Family{"spark2_5", {.rope_halves = true, .activation = Activation::kGelu}, finish_spark},
    Family{"muse-glimmer", {.qk_norm = QkNorm::kHeads, .norms_behind = true}, finish_muse_glimmer},
    Family{"glm4", {.norms_behind = true}},
    Family{"glm4moe",
           {.rope_halves = true,
            .qk_norm = QkNorm::kHeadsOrNone,
            .feed_forward_norm = "post_attention_norm",
            .experts = ExpertTraits{.gating = Gating::kSigmoid, .normalised = false}}},
    Family{"gemma", {.rope_halves = true, .activation = Activation::kGelu}, finish_gemma1},
    Family{"gemma2", kGemma2, finish_gemma2},
    Family{"gemma3", kGemma3, finish_gemma3},
    Family{"gemma4", kGemma4, finish_gemma4},
};

}  // namespace

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const Family& f : kFamilies) names.push_back(f.architecture);
  return names;
}

ModelSpec read_spec(GgufFile& file) {
  const Metadata metadata(file);
  for (const Family& f : kFamilies) {
    if (f.architecture != metadata.architecture()) continue;
    ModelSpec spec = read_decoder(file, metadata, f.traits);
    if (f.finish) f.finish(metadata, spec);
    set_shared_layers(metadata, spec);
    check_layers(metadata, spec);
    return spec;
  }
  throw LoadError(fmt::format("{} has the architecture '{}', which is not known; known: {}", file.path(),
                              metadata.architecture(), fmt::join(known_architectures(), ", ")));
}

}  // namespace coppice::model
