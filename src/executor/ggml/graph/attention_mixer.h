// The attention mixer of a layer.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// Writes the rows' keys and values into the layer's pool and attends. What the mixer's matrix `o` takes:
/// [n_head * head_dim, n_rows].
ggml_tensor* mix(GraphBuilder& b, const model::AttentionSpec& spec, Rows rows, const LayerPlace& place);

}  // namespace coppice::executor
