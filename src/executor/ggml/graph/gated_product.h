// The gated product of a feed-forward.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// activation(gate * rows) * (up * rows): [n_out, n_rows] (SwiGLU, GEGLU; Shazeer 2020).
ggml_tensor* gated_product(GraphBuilder& b, Rows rows, const model::GatedSpec& spec);
/// activation(gate) * up, of products made before.
ggml_tensor* gate_by(GraphBuilder& b, model::Activation activation, ggml_tensor* gate, ggml_tensor* up);

}  // namespace coppice::executor
