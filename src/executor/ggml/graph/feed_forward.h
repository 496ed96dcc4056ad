// The feed-forward part of a layer.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// x plus what the layer's feed-forward, its experts, or both together make of it: [n_embd, n_rows].
ggml_tensor* feed_forward(GraphBuilder& b, const model::LayerSpec& layer, ggml_tensor* x);

}  // namespace coppice::executor
