#include "executor/ggml/graph/attention_mixer.h"

#include "executor/ggml/graph/attention.h"
#include "executor/ggml/graph/enter_rows.h"
#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

namespace {

/// x: [n_heads * head_dim, n_rows]. Each head normalised, or all at once: the weights' length tells.
ggml_tensor* normalised(GraphBuilder& b, ggml_tensor* x, model::TensorId weight, int head_dim) {
  if (weight == model::kNoTensor) return x;
  const std::int64_t n = weight == model::kUnitNorm ? head_dim : b.parts.weights->plain(weight)->ne[0];
  ggml_tensor* parts = ggml_reshape_3d(b.context, x, n, x->ne[0] / n, x->ne[1]);
  return ggml_reshape_2d(b.context, rms_norm(b, parts, weight), x->ne[0], x->ne[1]);
}

/// What the layer's own matrices make of the rows.
LayerRows layer_rows(GraphBuilder& b, const model::AttentionSpec& spec, Rows rows) {
  if (!spec.owns_kv()) return {product(b, rows, spec.q), nullptr, nullptr};
  const bool has_v = spec.v.weight != model::kNoTensor;
  const std::vector<ggml_tensor*> qkv =
      has_v ? products(b, rows, {&spec.q, &spec.k, &spec.v}) : products(b, rows, {&spec.q, &spec.k});
  const int head_dim = spec.heads.head_dim;
  return {qkv[0], normalised(b, qkv[1], spec.k_norm, head_dim), normalised(b, qkv.back(), spec.v_norm, head_dim)};
}

/// x: [n_head * head_dim, n_rows], times the sigmoid of a gate of its size, or of one for each head.
ggml_tensor* gated(GraphBuilder& b, ggml_tensor* x, ggml_tensor* gate) {
  ggml_tensor* open = ggml_sigmoid(b.context, gate);
  ggml_tensor* parts = ggml_reshape_3d(b.context, x, x->ne[0] / gate->ne[0], gate->ne[0], x->ne[1]);
  ggml_tensor* y = ggml_mul(b.context, parts, ggml_reshape_3d(b.context, open, 1, gate->ne[0], x->ne[1]));
  return ggml_reshape_2d(b.context, y, x->ne[0], x->ne[1]);
}

/// The i-th part of each head's values, [2 * head_dim, n_head] in a row of x, in memory of its own.
ggml_tensor* half_of_heads(GraphBuilder& b, ggml_tensor* x, const model::HeadsSpec& heads, int i) {
  const auto dim = static_cast<std::size_t>(heads.head_dim) * sizeof(float);
  ggml_tensor* half = ggml_view_3d(b.context, x, heads.head_dim, heads.n_head, x->ne[1], 2 * dim, x->nb[1],
                                   static_cast<std::size_t>(i) * dim);
  return ggml_cont_2d(b.context, half, std::int64_t{heads.head_dim} * heads.n_head, x->ne[1]);
}

}  // namespace

ggml_tensor* mix(GraphBuilder& b, const model::AttentionSpec& spec, Rows rows, const LayerPlace& place) {
  LayerRows layer = layer_rows(b, spec, rows);
  ggml_tensor* gate = nullptr;
  if (spec.gate_in_q) {
    gate = half_of_heads(b, layer.q, spec.heads, 1);
    layer.q = half_of_heads(b, layer.q, spec.heads, 0);
  }
  layer.q = normalised(b, layer.q, spec.q_norm, spec.heads.head_dim);
  if (spec.sharpened && b.inputs.temperatures) layer.q = ggml_mul(b.context, layer.q, b.inputs.temperatures);
  ggml_tensor* mixed =
      b.parts.attention->attend(b, enter_rows(b, layer, spec, place), place.group, b.parts.weights->plain(spec.sinks));
  if (spec.gate.weight != model::kNoTensor) gate = product(b, rows, spec.gate);
  return gate ? gated(b, mixed, gate) : mixed;
}

}  // namespace coppice::executor
