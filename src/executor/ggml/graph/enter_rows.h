// enter_rows: a layer's new rows get their positions by rope, and their keys and values go into the pool.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// A layer's new rows, f32. enter_rows overwrites q and k. Both k and v are nullptr where the layer reads another
/// one's.
struct LayerRows {
  ggml_tensor* q;  ///< [n_head * head_dim, n_rows]
  ggml_tensor* k;  ///< [n_kv_head * head_dim, n_rows]
  ggml_tensor* v;  ///< [n_head_kv * head_dim, n_rows]
};

/// Rows whose keys and values are in the pool.
struct EnteredRows {
  ggml_tensor* q;  ///< [head_dim, n_head, n_rows], turned to their positions
  ggml_tensor* k;  ///< the layer's pool of keys. A reader must take it from here: so it comes after the write
  ggml_tensor* v;  ///< the layer's pool of values. A reader must take it from here
};

/// Adds the write to the graph, before any reader of the pool.
EnteredRows enter_rows(GraphBuilder& b, const LayerRows& rows, const model::AttentionSpec& spec,
                       const LayerPlace& place);

}  // namespace coppice::executor
