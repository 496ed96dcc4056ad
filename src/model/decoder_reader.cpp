#include "model/decoder_reader.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "model/load_error.h"
#include "model/tensor_table.h"

namespace coppice::model {

namespace {

/// What YaRN multiplies values by that are stretched by `factor` (Peng et al. 2023, section 3.4).
float yarn_magnitude(float factor, float weight) {
  return factor <= 1 ? 1.0F : 0.1F * weight * std::log(factor) + 1.0F;
}

/// Sets freq_scale, yarn and magnitude.
void read_scaling(const Metadata& m, const ModelSpec& spec, RopeSpec& rope) {
  const std::string type = m.text("rope.scaling.type", "linear");
  const float factor = m.factor("rope.scaling.factor", m.factor("rope.scale_linear", 1.0F));
  rope.magnitude = m.factor("rope.scaling.attn_factor", 1.0F);
  if (type == "linear" || type == "yarn") {
    rope.freq_scale = 1.0F / factor;
  } else if (type != "none" && type != "longrope") {
    m.refuse("positions are scaled by '{}'; none, linear, yarn and longrope are known", type);
  }
  if (type == "yarn") {
    rope.yarn = {.beta_fast = m.number("rope.scaling.yarn_beta_fast", 32.0F),
                 .beta_slow = m.number("rope.scaling.yarn_beta_slow", 1.0F),
                 .original_context = m.size("rope.scaling.original_context_length", 1 << 30, spec.context_length)};
    if (!(rope.yarn->beta_fast > 0) || !(rope.yarn->beta_slow > 0) || !(rope.base > 1)) {
      m.refuse("YaRN from {} to {} turns with the base {} makes no sense", rope.yarn->beta_slow, rope.yarn->beta_fast,
               rope.base);
    }
    rope.magnitude *=
        yarn_magnitude(factor, 1.0F) / yarn_magnitude(factor, m.number("rope.scaling.yarn_log_multiplier", 0.0F));
  }
}

/// Factors for all positions, or LongRoPE's for long contexts and for short ones. Which of these it is must not change while
/// a sequence grows, or keys in the cache would be worth nothing: the model's whole context decides.
TensorId read_factors(const Metadata& m, const TensorTable& tensors, const ModelSpec& spec, int dims) {
  const std::vector<std::int64_t> shape = {dims / 2};
  if (tensors.has("rope_freqs.weight")) return tensors.require("rope_freqs.weight", shape);
  const int original = m.size("rope.scaling.original_context_length", 1 << 30, spec.context_length);
  return tensors.optional(spec.context_length > original ? "rope_factors_long.weight" : "rope_factors_short.weight",
                          shape);
}

/// Heads, sizes and constants, checked against each other.
ModelSpec read_sizes(const Metadata& m) {
  constexpr int kMostHeads = 1 << 12;
  ModelSpec spec;
  spec.architecture = m.architecture();
  spec.name = m.file().text("general.name").value_or(std::filesystem::path(m.file().path()).stem().string());
  if (m.file().integer(m.key("expert_count")).value_or(0) > 0) {
    throw LoadError(fmt::format("{} is a mixture of experts, which is not built yet", m.file().path()));
  }
  spec.n_embd = m.size("embedding_length", 1 << 20);
  spec.n_head = m.size("attention.head_count", kMostHeads);
  spec.n_kv_head = m.size("attention.head_count_kv", spec.n_head, spec.n_head);
  spec.context_length = m.size("context_length", 1 << 30);
  spec.head_dim = m.size("attention.key_length", 1 << 12, spec.n_embd / spec.n_head);
  if (m.size("attention.value_length", 1 << 12, spec.head_dim) != spec.head_dim) {
    m.refuse("keys and values of different size are not built yet");
  }
  if (spec.n_head % spec.n_kv_head != 0 || spec.head_dim % 2 != 0) {
    m.refuse("{} heads of {} over {} key heads make no sense", spec.n_head, spec.head_dim, spec.n_kv_head);
  }
  spec.norm_eps = m.number("attention.layer_norm_rms_epsilon");
  spec.attention_scale = m.factor("attention.scale", 1.0F / std::sqrt(static_cast<float>(spec.head_dim)));
  return spec;
}

NormsSpec read_norms(const TensorTable& tensors, const std::string& before, const std::string& behind, int n_embd,
                     const DecoderTraits& traits) {
  NormsSpec norms;
  if (traits.norms_before) norms.before = tensors.require(before + ".weight", {n_embd});
  if (traits.norms_behind) norms.behind = tensors.require(behind + ".weight", {n_embd});
  return norms;
}

AttentionSpec read_attention(const TensorTable& tensors, const ModelSpec& spec, const std::string& p, QkNorm norm) {
  const std::int64_t q = std::int64_t{spec.n_head} * spec.head_dim, kv = std::int64_t{spec.n_kv_head} * spec.head_dim;
  AttentionSpec attention;
  if (tensors.has(p + "attn_qkv.weight")) {
    const std::array sizes = {q, kv, kv};
    const std::vector<LinearSpec> parts = tensors.split(p + "attn_qkv", spec.n_embd, sizes);
    attention.q = parts[0], attention.k = parts[1], attention.v = parts[2];
  } else {
    attention.q = tensors.linear(p + "attn_q", spec.n_embd, q);
    attention.k = tensors.linear(p + "attn_k", spec.n_embd, kv);
    attention.v = tensors.linear(p + "attn_v", spec.n_embd, kv);
  }
  attention.o = tensors.linear(p + "attn_output", q, spec.n_embd);
  if (norm != QkNorm::kNone) {
    const bool heads = norm == QkNorm::kHeads;
    attention.q_norm = tensors.require(p + "attn_q_norm.weight", {heads ? spec.head_dim : q});
    attention.k_norm = tensors.require(p + "attn_k_norm.weight", {heads ? spec.head_dim : kv});
  }
  return attention;
}

GatedSpec read_gated(const TensorTable& tensors, int n_embd, int n_ff, const std::string& p, Activation activation) {
  GatedSpec gated{.down = tensors.linear(p + "ffn_down", n_ff, n_embd), .activation = activation};
  if (!tensors.has(p + "ffn_gate.weight") && tensors.rows(p + "ffn_up.weight") == 2 * std::int64_t{n_ff}) {
    const std::array sizes = {std::int64_t{n_ff}, std::int64_t{n_ff}};
    const std::vector<LinearSpec> parts = tensors.split(p + "ffn_up", n_embd, sizes);
    gated.gate = parts[0], gated.up = parts[1];
  } else {
    gated.gate = tensors.linear(p + "ffn_gate", n_embd, n_ff);
    gated.up = tensors.linear(p + "ffn_up", n_embd, n_ff);
  }
  return gated;
}

}  // namespace

RopeSpec read_rope(const Metadata& m, const ModelSpec& spec, bool halves) {
  RopeSpec rope{.halves = halves};
  rope.dims = m.size("rope.dimension_count", spec.head_dim, spec.head_dim);
  if (rope.dims % 2 != 0) m.refuse("{} = {} is odd", m.key("rope.dimension_count"), rope.dims);
  const auto sections = m.list("rope.dimension_sections", 2);
  if (sections && (*sections)[1] > 0) m.refuse("positions in more than one dimension are not built yet");
  rope.base = m.number("rope.freq_base", 10000.0F);
  read_scaling(m, spec, rope);
  if (!(rope.base > 0) || !(rope.freq_scale > 0) || !std::isfinite(rope.freq_scale) || !(rope.magnitude > 0)) {
    m.refuse("rope base {}, scale {} and magnitude {} make no sense", rope.base, rope.freq_scale, rope.magnitude);
  }
  return rope;
}

ModelSpec read_decoder(GgufFile& file, const Metadata& m, const DecoderTraits& traits) {
  ModelSpec spec = read_sizes(m);
  const TensorTable tensors(file);
  spec.n_vocab = static_cast<int>(tensors.rows("token_embd.weight"));
  spec.embedding = tensors.require("token_embd.weight", {spec.n_embd, spec.n_vocab});
  spec.output_norm = tensors.require("output_norm.weight", {spec.n_embd});
  spec.output = {tensors.optional("output.weight", {spec.n_embd, spec.n_vocab}),
                 tensors.optional("output.bias", {spec.n_vocab})};
  if (spec.output.weight == kNoTensor) spec.output.weight = spec.embedding;
  spec.ropes = {read_rope(m, spec, traits.rope_halves)};
  spec.ropes[0].freq_factors = read_factors(m, tensors, spec, spec.ropes[0].dims);
  // The last layers may be there to guess further tokens: they are no part of the decoder.
  const int n_layers = m.size("block_count", 1 << 12) - m.size("nextn_predict_layers", 1 << 12, 0, 0);
  if (n_layers < 1) m.refuse("no layers are left for the decoder");
  const int n_ff = m.size("feed_forward_length", 1 << 22);
  for (int i = 0; i < n_layers; ++i) {
    const std::string p = fmt::format("blk.{}.", i);
    spec.layers.push_back(
        {.mixer_norms = read_norms(tensors, p + "attn_norm", p + "post_attention_norm", spec.n_embd, traits),
         .mixer = read_attention(tensors, spec, p, traits.qk_norm),
         .feed_forward_norms = read_norms(tensors, p + "ffn_norm", p + "post_ffw_norm", spec.n_embd, traits),
         .feed_forward = read_gated(tensors, spec.n_embd, n_ff, p, traits.activation)});
  }
  return spec;
}

}  // namespace coppice::model
