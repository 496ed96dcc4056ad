// StepGraph: one step of the decoder as a ggml graph. Where the attention backend allows it, a graph is run again for
// every step of its shape, with inputs filled anew.
//
// Owns the tensors' descriptions. Their memory belongs to the graph runner, and all graphs share it: fill a graph's
// inputs before each run, and read its outputs before another graph runs. Not thread safe.
#pragma once

#include <memory>
#include <vector>

#include "executor/executor.h"
#include "executor/ggml/graph/decoder.h"
#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// What decides a graph. No block id, token or position.
struct StepShape {
  int n_rows = 0;
  int n_logits = 0;     ///< rows whose logits are computed
  int n_hidden = 0;     ///< rows whose hidden states are
  bool embeds = false;  ///< some rows are embeddings
  bool alike = false;   ///< rows are rounded alike, however many there are: vectors are made from them
  int n_outputs() const { return n_logits + n_hidden; }
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

/// The batch's shape; where graphs are reused, padded to one of a few, so that they live long.
StepShape shape_of(const Batch& batch, const Attention& attention);

class StepGraph {
 public:
  StepGraph(const DecoderParts& parts, const Batch& batch, const StepShape& shape);
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  const StepShape& shape() const { return shape_; }
  ggml_cgraph* graph() const { return graph_; }

  /// Fills all inputs. Padding rows write to the store's scratch slots. REQUIRES: memory is allocated; the batch has
  /// this graph's shape, and it is the one that the graph was made for unless graphs are reused.
  void fill(const Batch& batch);

  /// [n_vocab, n_logits] and [n_embd, n_hidden] f32, until another graph is run; null where n is 0. REQUIRES: just run.
  float* logits() const { return data_of(outputs_.logits); }
  float* hidden_states() const { return data_of(outputs_.hidden_states); }

 private:
  void fill_rows(const Batch& batch);
  void fill_positions(const Batch& batch);
  static float* data_of(const ggml_tensor* t) { return t ? static_cast<float*>(t->data) : nullptr; }

  const DecoderParts& parts_;
  StepShape shape_;
  ContextPtr context_;
  ggml_cgraph* graph_ = nullptr;
  StepInputs inputs_;
  std::vector<std::shared_ptr<void>> node_data_;
  DecoderOutputs outputs_;
};

}  // namespace coppice::executor
