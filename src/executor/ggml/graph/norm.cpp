#include "executor/ggml/graph/norm.h"

namespace coppice::executor {

ggml_tensor* rms_norm(GraphBuilder& b, ggml_tensor* x, model::TensorId weight) {
  return ggml_mul(b.context, ggml_rms_norm(b.context, x, b.parts.spec->norm_eps), b.parts.weights->plain(weight));
}

}  // namespace coppice::executor
