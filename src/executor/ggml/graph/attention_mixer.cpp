#include "executor/ggml/graph/attention_mixer.h"

#include "executor/ggml/graph/attention.h"
#include "executor/ggml/graph/enter_rows.h"
#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

namespace {

/// x: [n_heads * head_dim, n_rows]. Each head normalised, or all at once: the weights' length tells.
ggml_tensor* normalised(GraphBuilder& b, ggml_tensor* x, model::TensorId weight) {
  if (weight == model::kNoTensor) return x;
  const std::int64_t n = b.parts.weights->plain(weight)->ne[0];
  ggml_tensor* parts = ggml_reshape_3d(b.context, x, n, x->ne[0] / n, x->ne[1]);
  return ggml_reshape_2d(b.context, rms_norm(b, parts, weight), x->ne[0], x->ne[1]);
}

}  // namespace

ggml_tensor* mix(GraphBuilder& b, const model::AttentionSpec& spec, Rows rows, const LayerPlace& place) {
  const std::vector<ggml_tensor*> qkv = products(b, rows, {&spec.q, &spec.k, &spec.v});
  ggml_tensor* q = normalised(b, qkv[0], spec.q_norm);
  if (b.inputs.temperatures) q = ggml_mul(b.context, q, b.inputs.temperatures);
  const LayerRows layer = {q, normalised(b, qkv[1], spec.k_norm), qkv[2]};
  return b.parts.attention->attend(b, enter_rows(b, layer, spec.rope, place), place.group);
}

}  // namespace coppice::executor
