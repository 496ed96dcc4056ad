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

void finish_mistral3(const Metadata& m, ModelSpec& spec) {
  spec.temperature.scale = m.number("attention.temperature_scale", 0.0F);
  spec.temperature.length = m.size("rope.scaling.original_context_length", 1 << 30, spec.context_length);
}

/// The first versions of Phi-3 see a window in all layers; later files say 0.
void finish_phi3(const Metadata& m, ModelSpec& spec) {
  const int window = window_of(m, spec, 0);
  for (LayerSpec& layer : spec.layers) layer.mixer.window = window;
}

void finish_granite(const Metadata& m, ModelSpec& spec) {
  spec.embedding_scale = m.factor("embedding_scale", 1.0F);
  spec.residual_scale = m.factor("residual_scale", 1.0F);
  spec.logit_scale = 1.0F / m.factor("logit_scale", 1.0F);
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
  set_sliding_layers(m, spec, {.window = window_of(m, spec, 0), .full_every = 4, .rope = spec.ropes[0]});
  const bool slides = std::ranges::any_of(spec.layers, [](const LayerSpec& l) { return l.mixer.window > 0; });
  for (LayerSpec& layer : spec.layers) {
    if (slides && layer.mixer.window == 0) layer.mixer.rope = AttentionSpec::kNoRope;
  }
}

/// Every fourth layer knows no positions.
void finish_smollm3(const Metadata& m, ModelSpec& spec) {
  const auto with_rope = m.list("attention.rope_pattern", static_cast<int>(spec.layers.size()));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (with_rope ? (*with_rope)[i] == 0 : i % 4 == 3) spec.layers[i].mixer.rope = AttentionSpec::kNoRope;
  }
}

void finish_gemma1(const Metadata&, ModelSpec& spec) {
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.n_embd));
}

/// Gemma 2 and 3. The largest model of both divides scores by another size than its heads'; files don't say so.
void finish_gemma(const Metadata& m, ModelSpec& spec, std::size_t layers_of_largest) {
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.n_embd));
  const int divisor = spec.layers.size() == layers_of_largest ? spec.n_embd / spec.n_head : spec.head_dim;
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

constexpr DecoderTraits kGemma2 = {.rope_halves = true, .norms_behind = true, .activation = Activation::kGelu};

constexpr DecoderTraits with_head_norms(DecoderTraits traits) {
  traits.qk_norm = QkNorm::kHeads;
  return traits;
}

constexpr std::array kFamilies{
    Family{"llama", {}},  // Llama, Mistral, SmolLM and their many children
    Family{"internlm2", {}},
    Family{"ernie4_5", {}},
    Family{"qwen2", {.rope_halves = true}},
    Family{"qwen3", {.rope_halves = true, .qk_norm = QkNorm::kHeads}},
    Family{"mistral3", {}, finish_mistral3},
    Family{"phi3", {.rope_halves = true}, finish_phi3},
    Family{"granite", {}, finish_granite},
    Family{"olmo2",
           {.rope_halves = true, .qk_norm = QkNorm::kWhole, .norms_before = false, .norms_behind = true},
           finish_olmo2},
    Family{"exaone4",
           {.rope_halves = true, .qk_norm = QkNorm::kHeads, .norms_before = false, .norms_behind = true},
           finish_exaone4},
    Family{"smollm3", {}, finish_smollm3},
    Family{"glm4", {.norms_behind = true}},
    Family{"gemma", {.rope_halves = true, .activation = Activation::kGelu}, finish_gemma1},
    Family{"gemma2", kGemma2, finish_gemma2},
    Family{"gemma3", with_head_norms(kGemma2), finish_gemma3},
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
    return spec;
  }
  throw LoadError(fmt::format("{} has the architecture '{}', which is not known; known: {}", file.path(),
                              metadata.architecture(), fmt::join(known_architectures(), ", ")));
}

}  // namespace coppice::model
