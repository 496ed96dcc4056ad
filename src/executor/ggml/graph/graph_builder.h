// GraphBuilder: a step's graph while it is being made, and what operators and layers need for that.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "attention/rope.h"
#include "executor/base/attention_groups.h"
#include "executor/ggml/store/ggml_ptr.h"
#include "executor/ggml/store/kv_store.h"
#include "executor/ggml/store/weights.h"
#include "matmul/quant_matrix.h"
#include "model/model.h"

namespace coppice::executor {

class Attention;
class StateStep;

/// What graphs are made from. All of it outlives the graphs.
struct DecoderParts {
  const model::ModelSpec* spec = nullptr;
  const Weights* weights = nullptr;
  const KvStore* store = nullptr;
  Attention* attention = nullptr;
  const std::vector<attention::Rope>* ropes = nullptr;                          ///< as spec->ropes
  std::vector<LayerPlace> places;                                               ///< [n_layers]
  StateStep* states = nullptr;                                                  ///< nullptr: no layer is recurrent
  std::shared_ptr<matmul::Claims> claims = std::make_shared<matmul::Claims>();  ///< of one node after the other
};

/// A graph's inputs. They are filled before each run.
struct StepInputs {
  ggml_tensor* tokens = nullptr;  ///< i32 [n_rows]
  /// f32 [embedding_size, n_rows]: of rows that are no tokens, in their places, with zeros in the further planes of
  /// those that are; nullptr: all are.
  ggml_tensor* embeddings = nullptr;
  ggml_tensor* sources = nullptr;  ///< i32 [n_rows]: i for a token, n_rows + i for an embedding; with embeddings
  /// i32 [n_rows], or where ropes have sections [4, n_rows]: time, height, width, and once more time, which turns
  /// nothing by ggml's rules but where the model's authors turn by time.
  ggml_tensor* positions = nullptr;
  std::vector<ggml_tensor*> slots;      ///< [n_groups] i64 [n_rows]: the store's rows for keys and values
  ggml_tensor* output_rows = nullptr;   ///< i32 [n_logits + n_hidden], in this order; nullptr: nothing is wanted
  int n_logits = 0;                     ///< rows whose logits are wanted
  bool alike = false;                   ///< packed products round a row alike, however many there are
  ggml_tensor* temperatures = nullptr;  ///< f32 [1, n_rows]: what queries are multiplied by; nullptr: nothing
};

/// What matrices are multiplied by: x, [n_in, n_rows] f32. It is normalised (norm.h) first where `norm` names a tensor.
struct Rows {
  ggml_tensor* x;
  model::TensorId norm = model::kNoTensor;
};

/// Into how many parts a custom node of so many values may be cut: handing out what takes some microseconds takes
/// longer than that.
inline int parts_for(std::int64_t n_values) {
  return n_values <= 4096 ? 1 : GGML_N_TASKS_MAX;
}

/// Owns nothing; lives while a StepGraph is made.
struct GraphBuilder {
  const DecoderParts& parts;
  ggml_context* context;
  ggml_cgraph* graph;
  const StepInputs& inputs;
  std::vector<std::shared_ptr<void>>& node_data;  ///< what custom nodes point to; lives as long as the graph
  std::vector<ggml_tensor*> turns = {};           ///< [ropes], each made by the first layer that needs it: enter_rows.h

  /// Data for a custom node.
  template <class T, class... Args>
  T& keep(Args&&... args) {
    auto data = std::make_shared<T>(std::forward<Args>(args)...);
    node_data.push_back(data);
    return *data;
  }
};

}  // namespace coppice::executor
