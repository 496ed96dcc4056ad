// Norms of rows.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// Each row of x divided by its root mean square, times the f32 tensor `weight` if it is one. eps: ModelSpec::norm_eps.
ggml_tensor* rms_norm(GraphBuilder& b, ggml_tensor* x, model::TensorId weight);
ggml_tensor* rms_norm(GraphBuilder& b, ggml_tensor* x, model::TensorId weight, float eps);
/// The rows, normalised where they say so.
ggml_tensor* normalised(GraphBuilder& b, Rows rows);

}  // namespace coppice::executor
