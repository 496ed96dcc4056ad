// Weights: the model's tensors as ggml sees them. Matrices go to the first of the CPU's extra buffer types that can
// multiply them (AMX, repacked: converted copies, the mapping's pages are let go); everything else is read straight
// from the mapping. An embedding tied to the output head may so be held twice. Q4_1 matrices that no buffer type wants
// become Q4_0 matrices and offsets (block_offsets.h) when one wants those.
//
// Owns the buffers; borrows the mapping: the Model must outlive it. Immutable after construction.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/ggml/block_offsets.h"
#include "executor/ggml/ggml_ptr.h"
#include "model/model.h"

namespace coppice::executor {

using Progress = std::function<void(std::string_view stage, double fraction)>;

class Weights {
 public:
  Weights(const model::Model& model, const Progress& progress);

  /// The matrix times x: [n_in, n_rows] f32 -> [n_out, n_rows] f32.
  /// REQUIRES: id is one of the spec's matrices, the output head included.
  ggml_tensor* multiply(ggml_context* context, model::TensorId id, ggml_tensor* x) const;
  /// For everything else: embedding rows, norms, biases, rope factors. nullptr for kNoTensor.
  ggml_tensor* plain(model::TensorId id) const { return id == model::kNoTensor ? nullptr : plain_.at(id); }

  std::size_t mapped_bytes() const { return mapped_bytes_; }        ///< read from the file's mapping
  std::size_t converted_bytes() const { return converted_bytes_; }  ///< in extra buffers

 private:
  struct Converted {
    ggml_backend_buffer_type_t type;
    ContextPtr context;
    std::vector<model::TensorId> ids;
    BufferPtr buffer;
  };
  struct Matrix {
    ggml_tensor* tensor = nullptr;
    std::unique_ptr<BlockOffsets> offsets;  ///< of a Q4_1 matrix held as Q4_0
  };
  ggml_tensor* describe(ggml_context* context, const model::TensorInfo& info, ggml_type type) const;
  ggml_tensor* map(model::TensorId id);
  void place_matrix(model::TensorId id);
  bool place_converted(model::TensorId id, ggml_type type);
  void convert(Converted& group, const Progress& progress, std::size_t total);

  const model::Model& model_;
  ContextPtr context_;
  BufferPtr mapping_;
  std::vector<Converted> converted_;
  std::map<model::TensorId, ggml_tensor*> plain_;
  std::map<model::TensorId, Matrix> matrices_;
  std::size_t mapped_bytes_ = 0, converted_bytes_ = 0;
};

}  // namespace coppice::executor
