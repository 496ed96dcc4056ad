#include "executor/ggml/graph/gated_feed_forward.h"

#include "executor/ggml/graph/gated_product.h"

namespace coppice::executor {

ggml_tensor* feed_forward(GraphBuilder& b, const model::GatedSpec& spec, Rows rows, const Residual& residual) {
  return add_product(b, {gated_product(b, rows, spec)}, spec.down, residual);
}

}  // namespace coppice::executor
