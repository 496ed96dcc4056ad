#include "executor/ggml/graph/token_inputs.h"

#include <cmath>

#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"
#include "executor/ggml/graph/residual.h"

namespace coppice::executor {

ggml_tensor* token_inputs(GraphBuilder& b, ggml_tensor* x) {
  const model::TokenInputsSpec& spec = b.parts.spec->token_inputs;
  if (spec.width == 0) return nullptr;
  const auto by_layer = [&](ggml_tensor* t, float scale) {
    t = ggml_scale(b.context, t, scale);
    return ggml_reshape_3d(b.context, t, spec.width, t->ne[0] / spec.width, t->ne[1]);
  };
  ggml_tensor* embedding = ggml_get_rows(b.context, b.parts.weights->plain(spec.embedding), b.inputs.tokens);
  ggml_tensor* projected = product(b, {x}, spec.projection);
  const float shrink = 1.0F / std::sqrt(static_cast<float>(x->ne[0]));
  projected = rms_norm(b, by_layer(projected, shrink), spec.norm);
  embedding = by_layer(embedding, std::sqrt(static_cast<float>(spec.width)));
  return ggml_scale(b.context, ggml_add(b.context, projected, embedding), std::sqrt(0.5F));
}

ggml_tensor* add_token_input(GraphBuilder& b, ggml_tensor* inputs, std::size_t i, ggml_tensor* rows, ggml_tensor* x) {
  const model::TokenInputSpec& spec = b.parts.spec->layers[i].token_input;
  ggml_tensor* own = ggml_view_2d(b.context, inputs, inputs->ne[0], inputs->ne[2], inputs->nb[2], i * inputs->nb[1]);
  if (rows) own = ggml_get_rows(b.context, own, rows);
  return add_product(b, {ggml_geglu_split(b.context, product(b, {x}, spec.down), own)}, spec.up, {x, spec.norm});
}

}  // namespace coppice::executor
