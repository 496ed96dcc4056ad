// Weights: the model's tensors, and how a step's graph multiplies by them. A matrix goes to the first of these that takes
// its type: our own packed form (matmul/), ggml's AMX buffers, ggml's other repacked buffers. All three are converted
// copies, and the mapping's pages are let go. Everything else is read straight from the mapping. An embedding tied to
// the output head may so be held twice.
//
// Owns the buffers; borrows the mapping: the Model must outlive it. Immutable after construction, but for the
// claims of workers on a product that runs: one graph runs at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/ggml/ggml_ptr.h"
#include "executor/ggml/progress.h"
#include "matmul/quant_matrix.h"
#include "model/model.h"

namespace coppice::executor {

/// Packed matrices that one node of the graph multiplies. One run of it at a time.
struct PackedGroup {
  std::vector<const matmul::QuantMatrix*> matrices;
  float norm_eps = 0.0F;
  mutable matmul::Claims claims;
};

class Weights {
 public:
  Weights(const model::Model& model, const Progress& progress);

  /// What matrices are multiplied by: [n_in, n_rows] f32, as it is, or normalised by each row's root mean square and
  /// weighted by the tensor `norm`.
  struct Rows {
    ggml_tensor* x;
    model::TensorId norm = model::kNoTensor;
  };
  // Where matrices are packed, a product is one node of the graph, together with the norm before it and what comes of it
  // after, and so are a layer's q, k and v, and its gate and up, if they have one type: workers wait for each other once.
  // REQUIRES: ids are of the spec's matrices, the output head included.

  /// The matrix times rows: [n_out, n_rows] f32. Plus `plus`, of the same shape, if there is one.
  ggml_tensor* multiply(ggml_context* context, model::TensorId id, Rows rows, ggml_tensor* plus = nullptr) const;
  /// Several matrices times one x.
  std::vector<ggml_tensor*> multiply(ggml_context* context, const std::vector<model::TensorId>& ids, Rows rows) const;
  /// silu(gate times rows) * (up times rows).
  ggml_tensor* multiply_gated(ggml_context* context, model::TensorId gate, model::TensorId up, Rows rows) const;
  /// For everything else: embedding rows, norms, biases, rope factors. nullptr for kNoTensor.
  ggml_tensor* plain(model::TensorId id) const { return id == model::kNoTensor ? nullptr : plain_.at(id); }

  std::size_t mapped_bytes() const { return mapped_bytes_; }        ///< read from the file's mapping
  std::size_t converted_bytes() const { return converted_bytes_; }  ///< in other forms

 private:
  struct Converted {
    ggml_backend_buffer_type_t type;
    ContextPtr context;
    std::vector<model::TensorId> ids;
    BufferPtr buffer;
  };
  struct Matrix {  ///< one of the two
    ggml_tensor* tensor = nullptr;
    std::unique_ptr<const matmul::QuantMatrix> packed;
  };

  ggml_tensor* describe(ggml_context* context, const model::TensorInfo& info) const;
  ggml_tensor* map(model::TensorId id);
  void place_matrix(model::TensorId id);
  bool place_in_buffer(model::TensorId id, ggml_backend_buffer_type_t type);
  bool place_packed(model::TensorId id);
  void join(const std::vector<model::TensorId>& ids);
  void convert(Converted& group);
  void let_go(model::TensorId id);
  ggml_tensor* normalised(ggml_context* context, Rows rows) const;

  const model::Model& model_;
  ContextPtr context_;
  BufferPtr mapping_;
  std::vector<Converted> converted_;
  std::map<model::TensorId, ggml_tensor*> plain_;
  std::map<model::TensorId, Matrix> matrices_;
  std::map<std::vector<model::TensorId>, PackedGroup> groups_;  ///< every packed matrix is one by itself, too
  std::size_t mapped_bytes_ = 0, converted_bytes_ = 0;
};

}  // namespace coppice::executor
