// StepGraph: one step of the decoder as a ggml graph, built from a ModelSpec for one GraphKey and run again for every
// step of that shape with refilled inputs.
//
// Owns the tensors' descriptions; their memory belongs to the executor's graph allocator, which all graphs share: a
// graph's inputs must be filled anew before each run, and its logits read before the next graph runs.
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "attention/cpu/rope.h"
#include "executor/ggml/attention.h"
#include "executor/ggml/kv_store.h"
#include "executor/ggml/weights.h"
#include "model/model.h"

namespace coppice::executor {

/// Everything that decides a graph. No block id, no token, no position.
struct GraphKey {
  int n_rows = 0;
  int n_outputs = 0;
  std::vector<UnitKey> units;
  auto operator<=>(const GraphKey&) const = default;
};

/// What graphs are built from. All of it outlives the graphs.
struct DecoderParts {
  const model::ModelSpec* spec = nullptr;
  const Weights* weights = nullptr;
  const KvStore* store = nullptr;
  Attention* attention = nullptr;
  const attention::Rope* rope = nullptr;
  std::vector<kv::GroupSpec> groups;
  std::vector<int> group_of_layer;  ///< [n_layers]
  std::vector<int> slot_of_layer;   ///< [n_layers] layer slot
};

class StepGraph {
 public:
  StepGraph(const DecoderParts& parts, GraphKey key);

  const GraphKey& key() const { return key_; }
  ggml_cgraph* graph() const { return graph_; }
  /// [n_vocab, n_outputs] f32, until another graph is run. REQUIRES: n_outputs > 0; just run.
  float* logits() const { return static_cast<float*>(logits_->data); }

  /// Refills every input. REQUIRES: memory is allocated; the plan has this graph's shape.
  void fill(const Batch& batch, const StepPlan& plan);

  static GraphKey key_for(const StepPlan& plan, const Attention& attention);

 private:
  void declare_inputs();
  ggml_tensor* linear(ggml_tensor* x, const model::LinearSpec& l, ggml_tensor* plus);
  std::vector<ggml_tensor*> linear(Weights::Rows rows, std::initializer_list<const model::LinearSpec*> all);
  ggml_tensor* add_bias(ggml_tensor* x, const model::LinearSpec& l);
  ggml_tensor* rope(ggml_tensor* x);
  EnteredRows enter_rows(const std::vector<ggml_tensor*>& qkv, int layer_slot, ggml_tensor* slots);
  ggml_tensor* attend(ggml_tensor* x, int layer, bool last);
  ggml_tensor* attend_units(ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, std::size_t group);
  ggml_tensor* feed_forward(ggml_tensor* x, const model::LayerSpec& layer);
  void build();

  const DecoderParts& parts_;
  GraphKey key_;
  ContextPtr context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_tensor* tokens_ = nullptr;               ///< i32 [n_rows]
  ggml_tensor* positions_ = nullptr;            ///< i32 [n_rows]
  ggml_tensor* turns_ = nullptr;                ///< f32 [2 * rope dims, n_rows]; nullptr where attention is portable
  ggml_tensor* output_rows_ = nullptr;          ///< i32 [n_outputs]
  std::vector<ggml_tensor*> slots_;             ///< [n_groups] i64 [n_rows]
  std::vector<std::vector<UnitInputs>> units_;  ///< [units][n_groups]
  ggml_tensor* logits_ = nullptr;
};

}  // namespace coppice::executor
