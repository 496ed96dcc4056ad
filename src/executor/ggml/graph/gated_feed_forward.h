// The gated feed-forward of a layer.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// residual + down * (silu(gate * rows) * (up * rows)): [n_embd, n_rows].
ggml_tensor* feed_forward(GraphBuilder& b, const model::GatedSpec& spec, Rows rows, ggml_tensor* residual);

}  // namespace coppice::executor
