#include "executor/ggml/graph/feed_forward.h"

#include "executor/ggml/graph/experts.h"
#include "executor/ggml/graph/gated_product.h"
#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"
#include "executor/ggml/graph/residual.h"

namespace coppice::executor {

namespace {

ggml_tensor* behind(GraphBuilder& b, ggml_tensor* y, model::TensorId norm) {
  return norm == model::kNoTensor ? y : rms_norm(b, y, norm, b.parts.spec->norm_eps_behind);
}

/// What experts make of the layer's x; `read` is what the feed-forward beside them reads.
ggml_tensor* experts_of(GraphBuilder& b, const model::ExpertsSpec& spec, ggml_tensor* x, ggml_tensor* read) {
  if (spec.norms.before != model::kNoTensor) read = rms_norm(b, x, spec.norms.before);
  ggml_tensor* scored = read;
  if (spec.router_norm != model::kNoTensor) {
    scored = ggml_scale(b.context, rms_norm(b, x, spec.router_norm), spec.router_scale);
  }
  return behind(b, experts(b, spec, read, scored), spec.norms.behind);
}

/// y plus the feed-forward beside the experts, which reads x.
ggml_tensor* add_shared(GraphBuilder& b, const model::LayerSpec& layer, ggml_tensor* x, ggml_tensor* y) {
  const model::LinearSpec& down = layer.feed_forward.down;
  const model::ExpertsSpec& experts = layer.experts;
  const Rows gated{gated_product(b, {x}, layer.feed_forward)};
  const bool plain = experts.shared_gate == model::kNoTensor && experts.shared_norm == model::kNoTensor;
  if (plain) return product(b, gated, down, y);
  ggml_tensor* shared = behind(b, product(b, gated, down), experts.shared_norm);
  if (ggml_tensor* gate = b.parts.weights->plain(experts.shared_gate)) {
    shared = ggml_mul(b.context, shared, ggml_sigmoid(b.context, ggml_mul_mat(b.context, gate, x)));
  }
  return ggml_add(b.context, y, shared);
}

}  // namespace

ggml_tensor* feed_forward(GraphBuilder& b, const model::LayerSpec& layer, ggml_tensor* x) {
  const Rows rows{x, layer.feed_forward_norms.before};
  const Residual residual{x, layer.feed_forward_norms.behind};
  const model::GatedSpec& spec = layer.feed_forward;
  if (layer.experts.n == 0) return add_product(b, {gated_product(b, rows, spec)}, spec.down, residual);
  ggml_tensor* read = normalised(b, rows);
  ggml_tensor* y = experts_of(b, layer.experts, x, read);
  if (spec.down.weight != model::kNoTensor) y = add_shared(b, layer, read, y);
  return add(b, y, residual);
}

}  // namespace coppice::executor
