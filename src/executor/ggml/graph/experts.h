// A layer's mixture of experts.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// The weighted sum of what its experts make of each row of x: [n_embd, n_rows]. scored: what the router reads of the
/// rows.
ggml_tensor* experts(GraphBuilder& b, const model::ExpertsSpec& spec, ggml_tensor* x, ggml_tensor* scored);

}  // namespace coppice::executor
