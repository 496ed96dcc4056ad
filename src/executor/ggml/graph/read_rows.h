// read_rows: keys or values out of the pool, for backends that copy them.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// The rows `ids` (i32 [n_ids]) of a layer's pool of keys or values, in f32: [head_dim, n_kv_head, n_ids]. ggml's
/// operator where the format is f16, otherwise a node of our own.
ggml_tensor* read_rows(GraphBuilder& b, ggml_tensor* pool, ggml_tensor* ids, int head_dim);

}  // namespace coppice::executor
