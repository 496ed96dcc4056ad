// What layers add of tokens' own embeddings for them: model::TokenInputsSpec, model::TokenInputSpec.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// x: the decoder's input, [n_embd, n_rows]. Each token's vectors, [width, n_layers, n_rows]; nullptr: the model has
/// none.
ggml_tensor* token_inputs(GraphBuilder& b, ggml_tensor* x);

/// x and what layer i adds to it: [n_embd, n_rows]. rows: i32 [n_rows], of those that `inputs` has; nullptr: all.
ggml_tensor* add_token_input(GraphBuilder& b, ggml_tensor* inputs, std::size_t i, ggml_tensor* rows, ggml_tensor* x);

}  // namespace coppice::executor
