// The residual stream: what a layer's parts are added to.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

struct Residual {
  ggml_tensor* x;                           ///< [n_embd, n_rows]
  model::TensorId norm = model::kNoTensor;  ///< of what is added
};

/// residual.x + ModelSpec::residual_scale * (y, normalised if there is a norm).
ggml_tensor* add(GraphBuilder& b, ggml_tensor* y, const Residual& residual);
/// residual.x + ModelSpec::residual_scale * (the matrix times rows, plus its bias, normalised if there is a norm).
ggml_tensor* add_product(GraphBuilder& b, Rows rows, const model::LinearSpec& linear, const Residual& residual);

}  // namespace coppice::executor
