#include "executor/ggml/graph/norm.h"

namespace coppice::executor {

ggml_tensor* rms_norm(GraphBuilder& b, ggml_tensor* x, model::TensorId weight) {
  return rms_norm(b, x, weight, b.parts.spec->norm_eps);
}

ggml_tensor* rms_norm(GraphBuilder& b, ggml_tensor* x, model::TensorId weight, float eps) {
  ggml_tensor* y = ggml_rms_norm(b.context, x, eps);
  return weight == model::kUnitNorm ? y : ggml_mul(b.context, y, b.parts.weights->plain(weight));
}

ggml_tensor* normalised(GraphBuilder& b, Rows rows) {
  return rows.norm == model::kNoTensor ? rows.x : rms_norm(b, rows.x, rows.norm);
}

}  // namespace coppice::executor
