// Which experts each row takes.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

struct ExpertChoice {
  ggml_tensor* ids;      ///< i32 [n_used, n_rows], a view
  ggml_tensor* weights;  ///< f32 [1, n_used, n_rows]
};

/// x: what the router reads, [n_embd, n_rows].
ExpertChoice choose_experts(GraphBuilder& b, const model::ExpertsSpec& spec, ggml_tensor* x);

}  // namespace coppice::executor
