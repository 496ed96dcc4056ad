#include "executor/ggml/graph/residual.h"

#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

ggml_tensor* add_product(GraphBuilder& b, Rows rows, const model::LinearSpec& linear, const Residual& residual) {
  const float scale = b.parts.spec->residual_scale;
  if (residual.norm == model::kNoTensor && scale == 1) return product(b, rows, linear, residual.x);
  ggml_tensor* y = product(b, rows, linear);
  if (residual.norm != model::kNoTensor) y = rms_norm(b, y, residual.norm, b.parts.spec->norm_eps_behind);
  if (scale != 1) y = ggml_scale(b.context, y, scale);
  return ggml_add(b.context, y, residual.x);
}

}  // namespace coppice::executor
