// The decoder: a ModelSpec's layers, each put together from its mixer and its feed-forward. Another kind of either is
// an overload of mix() or feed_forward() in a file of its own.
#pragma once

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// Of the rows in inputs.output_rows. Without such rows the graph does no more than write keys and values.
struct DecoderOutputs {
  ggml_tensor* logits = nullptr;         ///< [n_vocab, n_logits]; nullptr: none are wanted
  ggml_tensor* hidden_states = nullptr;  ///< behind the last norm, [n_embd, n_hidden]; nullptr: none are wanted
};
DecoderOutputs build_decoder(GraphBuilder& b);

}  // namespace coppice::executor
