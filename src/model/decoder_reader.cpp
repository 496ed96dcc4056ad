#include "model/decoder_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

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
    rope.magnitude *=
        yarn_magnitude(factor, 1.0F) / yarn_magnitude(factor, m.number("rope.scaling.yarn_log_multiplier", 0.0F));
  }
}

/// The file's list has a fourth number, which only encoders of pictures use.
std::optional<RopeSections> read_sections(const Metadata& m, int dims, RopeAxes axes) {
  const auto list = m.list("rope.dimension_sections", 4);
  if (!list || (*list)[1] == 0) return std::nullopt;
  if (axes == RopeAxes::kOne) m.refuse("positions in more than one dimension are not built yet");
  RopeSections sections{.interleaved = axes == RopeAxes::kInterleaved};
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t pairs = (*list)[i];
    if (pairs < 0 || pairs > dims / 2)
      m.refuse("{} pairs of {} in {}", pairs, dims / 2, m.key("rope.dimension_sections"));
    sections.pairs[i] = static_cast<int>(pairs);
  }
  const auto& [time, height, width] = sections.pairs;
  if (time + height + width != dims / 2 || (*list)[3] != 0) {
    m.refuse("{} and {} and {} and {} pairs turn by parts of a position, but {} turn in all", time, height, width,
             (*list)[3], dims / 2);
  }
  return sections;
}

/// Positions in heads of head_dim values. Its numbers are checked with those of other ropes (check_layers()).
RopeSpec read_rope(const Metadata& m, const ModelSpec& spec, int head_dim, const DecoderTraits& traits) {
  RopeSpec rope{.halves = traits.rope_halves};
  rope.dims = m.size("rope.dimension_count", head_dim, head_dim);
  if (rope.dims % 2 != 0) m.refuse("{} = {} is odd", m.key("rope.dimension_count"), rope.dims);
  rope.sections = read_sections(m, rope.dims, traits.rope_axes);
  rope.base = m.number("rope.freq_base", 10000.0F);
  read_scaling(m, spec, rope);
  return rope;
}

/// Factors for all positions, or LongRoPE's for long contexts and for short ones. Which of these it is must not change
/// while a sequence grows, or keys in the cache would be worth nothing: the model's whole context decides.
TensorId read_factors(const Metadata& m, const TensorTable& tensors, const ModelSpec& spec, int dims) {
  const std::vector<std::int64_t> shape = {dims / 2};
  if (tensors.has("rope_freqs.weight")) return tensors.require("rope_freqs.weight", shape);
  const int original = m.size("rope.scaling.original_context_length", 1 << 30, spec.context_length);
  return tensors.optional(spec.context_length > original ? "rope_factors_long.weight" : "rope_factors_short.weight",
                          shape);
}

/// Sizes and constants.
ModelSpec read_sizes(const Metadata& m) {
  ModelSpec spec;
  spec.architecture = m.architecture();
  spec.name = m.file().text("general.name").value_or(m.file().name());
  spec.n_embd = m.size("embedding_length", 1 << 20);
  spec.context_length = m.size("context_length", 1 << 30);
  spec.norm_eps = spec.norm_eps_behind = m.number("attention.layer_norm_rms_epsilon");
  return spec;
}

/// Of each layer, checked against each other; none of recurrent ones. Names that end in "_swa" are those of layers that
/// slide.
std::vector<HeadsSpec> read_heads(const Metadata& m, int n_embd, const std::vector<bool>& recurrent) {
  constexpr int kMostHeads = 1 << 12, kLongest = 1 << 12;
  const auto n_layers = static_cast<int>(recurrent.size());
  const std::vector<int> n_head = m.sizes("attention.head_count", n_layers, kMostHeads);
  const std::vector<int> n_kv_head = m.sizes("attention.head_count_kv", n_layers, kMostHeads, n_head[0], 0);
  const int full_dim = m.size("attention.key_length", kLongest, n_embd / n_head[0]);
  const int sliding_dim = m.size("attention.key_length_swa", kLongest, full_dim);
  if (m.size("attention.value_length", kLongest, full_dim) != full_dim ||
      m.size("attention.value_length_swa", kLongest, sliding_dim) != sliding_dim) {
    m.refuse("keys and values of different size are not built yet");
  }
  const auto slides = m.list("attention.sliding_window_pattern", n_layers);
  std::vector<HeadsSpec> layers;
  for (std::size_t i = 0; i < n_head.size(); ++i) {
    if (recurrent[i]) {
      layers.emplace_back();
      continue;
    }
    const HeadsSpec h{n_head[i], n_kv_head[i], slides && (*slides)[i] != 0 ? sliding_dim : full_dim};
    if (h.n_kv_head == 0 || h.n_head % h.n_kv_head != 0 || h.head_dim % 2 != 0) {
      m.refuse("{} heads of {} over {} key heads make no sense", h.n_head, h.head_dim, h.n_kv_head);
    }
    layers.push_back(h);
  }
  return layers;
}

/// ModelSpec::attention_scale. It is one number: heads of several sizes would need several, unless the family has its
/// own.
float read_attention_scale(const Metadata& m, const std::vector<HeadsSpec>& heads, int head_dim, float of_family) {
  if (of_family != 0) return of_family;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (heads[i].head_dim == head_dim || heads[i].n_head == 0) continue;
    m.refuse("heads of {} values in layer {} and of {} in others: scores of several scales are not built yet",
             heads[i].head_dim, i, head_dim);
  }
  return m.factor("attention.scale", 1.0F / std::sqrt(static_cast<float>(head_dim)));
}

NormsSpec read_norms(const TensorTable& tensors, const std::string& before, const std::string& behind, int n_embd,
                     const DecoderTraits& traits) {
  NormsSpec norms;
  if (traits.norms_before) norms.before = tensors.require(before + ".weight", {n_embd});
  if (traits.norms_behind) norms.behind = tensors.require(behind + ".weight", {n_embd});
  return norms;
}

AttentionSpec read_attention(const TensorTable& tensors, const HeadsSpec& heads, int n_embd, bool owns_kv,
                             const std::string& p, const DecoderTraits& traits) {
  const std::int64_t q = std::int64_t{heads.n_head} * heads.head_dim;
  const std::int64_t kv = std::int64_t{heads.n_kv_head} * heads.head_dim;
  AttentionSpec attention{
      .heads = heads, .gate_in_q = traits.gate_in_q, .v_norm = owns_kv && traits.v_norm ? kUnitNorm : kNoTensor};
  if (tensors.has(p + "attn_qkv.weight")) {
    const std::array sizes = {q, kv, kv};
    const std::vector<LinearSpec> parts = tensors.split(p + "attn_qkv", n_embd, sizes);
    attention.q = parts[0];
    if (owns_kv) attention.k = parts[1], attention.v = parts[2];
  } else {
    attention.q = tensors.linear(p + "attn_q", n_embd, traits.gate_in_q ? 2 * q : q);
    if (owns_kv) attention.k = tensors.linear(p + "attn_k", n_embd, kv);
    const bool has_v = !traits.v_norm || tensors.has(p + "attn_v.weight");
    if (owns_kv && has_v) attention.v = tensors.linear(p + "attn_v", n_embd, kv);
  }
  attention.o = tensors.linear(p + "attn_output", q, n_embd);
  if (const std::string gate = p + "attn_gate"; tensors.has(gate + ".weight")) {
    attention.gate = tensors.linear(gate, n_embd, tensors.rows(gate + ".weight") == heads.n_head ? heads.n_head : q);
  }
  attention.sinks = tensors.optional(p + "attn_sinks.weight", {heads.n_head});
  const bool has_qk_norm = traits.qk_norm != QkNorm::kNone &&
                           (traits.qk_norm != QkNorm::kHeadsOrNone || tensors.has(p + "attn_q_norm.weight"));
  if (has_qk_norm) {
    const bool whole = traits.qk_norm == QkNorm::kWhole;
    attention.q_norm = tensors.require(p + "attn_q_norm.weight", {whole ? q : heads.head_dim});
    if (owns_kv) attention.k_norm = tensors.require(p + "attn_k_norm.weight", {whole ? kv : heads.head_dim});
  }
  return attention;
}

GatedSpec read_gated(const TensorTable& tensors, int n_embd, int n_ff, const std::string& p, Activation activation,
                     const char* suffix = "") {
  const std::string gate = p + "ffn_gate" + suffix, up = p + "ffn_up" + suffix;
  GatedSpec gated{.down = tensors.linear(p + "ffn_down" + suffix, n_ff, n_embd), .activation = activation};
  if (!tensors.has(gate + ".weight") && tensors.rows(up + ".weight") == 2 * std::int64_t{n_ff}) {
    const std::array sizes = {std::int64_t{n_ff}, std::int64_t{n_ff}};
    const std::vector<LinearSpec> parts = tensors.split(up, n_embd, sizes);
    gated.gate = parts[0], gated.up = parts[1];
  } else {
    gated.gate = tensors.linear(gate, n_embd, n_ff);
    gated.up = tensors.linear(up, n_embd, n_ff);
  }
  return gated;
}

/// llama.cpp's numbers: none, mean, first, last, rank.
Pooling read_pooling(const Metadata& m) {
  switch (m.size("pooling_type", 4, 0, 0)) {
    case 0:
      return Pooling::kUnsaid;
    case 1:
      return Pooling::kMean;
    case 3:
      return Pooling::kLast;
    default:
      return Pooling::kOther;
  }
}

/// The layer's feed-forward, its experts, or both.
void read_feed_forward(const Metadata& m, const TensorTable& tensors, int n_embd, int n_ff, const std::string& p,
                       const DecoderTraits& traits, LayerSpec& layer) {
  if (!tensors.has(p + "ffn_gate_inp.weight")) {
    layer.feed_forward = read_gated(tensors, n_embd, n_ff, p, traits.activation);
    return;
  }
  if (!traits.experts) m.refuse("experts are not built yet for the architecture '{}'", m.architecture());
  layer.experts = read_experts(m, tensors, n_embd, n_ff, p, *traits.experts, traits.activation);
  const char* suffix = tensors.has(p + "ffn_up_shexp.weight") ? "_shexp" : "";
  const std::string up = p + "ffn_up" + suffix + ".weight";
  if (!tensors.has(up)) return;
  layer.feed_forward = read_gated(tensors, n_embd, static_cast<int>(tensors.rows(up)), p, traits.activation, suffix);
}

/// Sets the embeddings that layers add, if the file has them.
void read_token_inputs(const Metadata& m, const TensorTable& tensors, ModelSpec& spec) {
  const int width = m.size("embedding_length_per_layer_input", 1 << 16, 0, 0);
  if (width == 0) return;
  const std::int64_t all = std::int64_t{width} * std::ssize(spec.layers);
  spec.token_inputs = {.width = width,
                       .embedding = tensors.require("per_layer_token_embd.weight", {all, spec.n_vocab}),
                       .projection = tensors.linear("per_layer_model_proj", spec.n_embd, all),
                       .norm = tensors.require("per_layer_proj_norm.weight", {width})};
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string p = fmt::format("blk.{}.", i);
    spec.layers[i].token_input = {.down = tensors.linear(p + "inp_gate", spec.n_embd, width),
                                  .up = tensors.linear(p + "proj", width, spec.n_embd),
                                  .norm = tensors.require(p + "post_norm.weight", {spec.n_embd})};
  }
}

}  // namespace

ModelSpec read_decoder(GgufFile& file, const Metadata& m, const DecoderTraits& traits) {
  ModelSpec spec = read_sizes(m);
  const TensorTable tensors(file);
  spec.n_vocab = static_cast<int>(tensors.rows("token_embd.weight"));
  spec.embedding = tensors.require("token_embd.weight", {spec.n_embd, spec.n_vocab});
  spec.output_norm = tensors.require(fmt::format("{}.weight", traits.output_norm), {spec.n_embd});
  spec.output = {tensors.optional("output.weight", {spec.n_embd, spec.n_vocab}),
                 tensors.optional("output.bias", {spec.n_vocab})};
  if (spec.output.weight == kNoTensor) spec.output.weight = spec.embedding;
  // The last layers may be there to guess further tokens: they are no part of the decoder.
  const int n_layers = m.size("block_count", 1 << 12) - m.size("nextn_predict_layers", 1 << 12, 0, 0);
  if (n_layers < 1) m.refuse("no layers are left for the decoder");
  const std::vector<bool> recurrent = recurrent_layers(m, n_layers, traits.recurrent);
  const std::vector<HeadsSpec> heads = read_heads(m, spec.n_embd, recurrent);
  const auto first = static_cast<std::size_t>(std::ranges::find(recurrent, false) - recurrent.begin());
  const int head_dim = m.size("attention.key_length", 1 << 12, heads[first].head_dim);
  spec.attention_scale = read_attention_scale(m, heads, head_dim, traits.attention_scale);
  spec.ropes = {read_rope(m, spec, head_dim, traits)};
  spec.ropes[0].freq_factors = read_factors(m, tensors, spec, spec.ropes[0].dims);
  const std::vector<int> n_ff =
      m.sizes("feed_forward_length", n_layers, 1 << 22, m.file().integer(m.key("expert_feed_forward_length")));
  const int n_owners = n_layers - m.size("attention.shared_kv_layers", n_layers - 1, 0, 0);
  for (int i = 0; i < n_layers; ++i) {
    const std::string p = fmt::format("blk.{}.", i);
    const auto at = static_cast<std::size_t>(i);
    spec.layers.push_back(
        {.mixer_norms = read_norms(tensors, p + "attn_norm", p + "post_attention_norm", spec.n_embd, traits),
         .feed_forward_norms =
             read_norms(tensors, p + traits.feed_forward_norm, p + "post_ffw_norm", spec.n_embd, traits),
         .scale = tensors.optional(p + "layer_output_scale.weight", {1})});
    LayerSpec& layer = spec.layers.back();
    if (recurrent[at]) {
      layer.recurrent = read_recurrent(m, tensors, spec.n_embd, p, traits.recurrent);
    } else {
      layer.mixer = read_attention(tensors, heads[at], spec.n_embd, i < n_owners, p, traits);
    }
    read_feed_forward(m, tensors, spec.n_embd, n_ff[at], p, traits, layer);
  }
  read_token_inputs(m, tensors, spec);
  spec.n_planes = m.size("n_deepstack_layers", n_layers - 1, 0, 0);
  spec.pooling = read_pooling(m);
  return spec;
}

}  // namespace coppice::model
