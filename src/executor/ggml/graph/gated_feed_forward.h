// The gated feed-forward of a layer.
#pragma once

#include "executor/ggml/graph/residual.h"

namespace coppice::executor {

/// down * (activation(gate * rows) * (up * rows)), added to the residual: [n_embd, n_rows].
ggml_tensor* feed_forward(GraphBuilder& b, const model::GatedSpec& spec, Rows rows, const Residual& residual);

}  // namespace coppice::executor
