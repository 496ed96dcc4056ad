#include "executor/ggml/graph/gated_feed_forward.h"

#include "executor/ggml/graph/gated_product.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

ggml_tensor* feed_forward(GraphBuilder& b, const model::GatedSpec& spec, Rows rows, ggml_tensor* residual) {
  return product(b, {gated_product(b, rows, spec.gate, spec.up)}, spec.down, residual);
}

}  // namespace coppice::executor
