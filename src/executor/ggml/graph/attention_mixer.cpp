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

}  // namespace

ggml_tensor* mix(GraphBuilder& b, const model::AttentionSpec& spec, Rows rows, const LayerPlace& place) {
  LayerRows layer = layer_rows(b, spec, rows);
  layer.q = normalised(b, layer.q, spec.q_norm, spec.heads.head_dim);
  if (spec.sharpened && b.inputs.temperatures) layer.q = ggml_mul(b.context, layer.q, b.inputs.temperatures);
  ggml_tensor* mixed =
      b.parts.attention->attend(b, enter_rows(b, layer, spec, place), place.group, b.parts.weights->plain(spec.sinks));
  return spec.gate.weight == model::kNoTensor ? mixed : gated(b, mixed, product(b, rows, spec.gate));
}

}  // namespace coppice::executor
