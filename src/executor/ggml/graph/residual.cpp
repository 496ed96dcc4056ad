#include "executor/ggml/graph/residual.h"

#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

ggml_tensor* add(GraphBuilder& b, ggml_tensor* y, const Residual& residual) {
  if (residual.norm != model::kNoTensor) y = rms_norm(b, y, residual.norm, b.parts.spec->norm_eps_behind);
  const float scale = b.parts.spec->residual_scale;
  if (scale != 1) y = ggml_scale(b.context, y, scale);
  return ggml_add(b.context, y, residual.x);
}

ggml_tensor* add_product(GraphBuilder& b, Rows rows, const model::LinearSpec& linear, const Residual& residual) {
  const bool plain = residual.norm == model::kNoTensor && b.parts.spec->residual_scale == 1;
  return plain ? product(b, rows, linear, residual.x) : add(b, product(b, rows, linear), residual);
}

}  // namespace coppice::executor
