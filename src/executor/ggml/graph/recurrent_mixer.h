// The recurrent mixers of a layer: they read a sequence's state, and write it as it is behind the step's rows.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// What the mixer's matrix `out` takes, [its n_in, n_rows]. The write of the layer's part of the states is in the graph
/// then. layer: its number.
ggml_tensor* mix(GraphBuilder& b, const model::ShortConvSpec& spec, Rows rows, std::size_t layer);
ggml_tensor* mix(GraphBuilder& b, const model::LinearAttentionSpec& spec, Rows rows, std::size_t layer);

}  // namespace coppice::executor
