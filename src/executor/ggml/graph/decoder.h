// The decoder: a ModelSpec's layers, each put together from its mixer and its feed-forward. Another kind of either is an
// overload of mix() or feed_forward() in a file of its own.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// Logits of the rows in inputs.output_rows: [n_vocab, n_outputs]. Without such rows nullptr: then the graph does no more
/// than write keys and values.
ggml_tensor* build_decoder(GraphBuilder& b);

}  // namespace coppice::executor
