// Norms of rows.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// Each row of x divided by its root mean square, times the f32 tensor `weight`.
ggml_tensor* rms_norm(GraphBuilder& b, ggml_tensor* x, model::TensorId weight);

}  // namespace coppice::executor
