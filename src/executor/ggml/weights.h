// Weights: the model's tensors as ggml sees them. Matrices go to the first of the CPU's extra buffer types that can
// multiply them (AMX, repacked: converted copies, the mapping's pages are let go); everything else is read straight
// from the mapping. An embedding tied to the output head may so be held twice.
//
// Owns the buffers; borrows the mapping: the Model must outlive it. Immutable after construction.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "executor/ggml/ggml_ptr.h"
#include "model/model.h"

namespace coppice::executor {

using Progress = std::function<void(std::string_view stage, double fraction)>;

class Weights {
 public:
  Weights(const model::Model& model, const Progress& progress);

  /// For ggml_mul_mat. REQUIRES: id is one of the spec's matrices, the output head included.
  ggml_tensor* matrix(model::TensorId id) const { return matrices_.at(id); }
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
  ggml_tensor* describe(ggml_context* context, const model::TensorInfo& info) const;
  ggml_tensor* map(model::TensorId id);
  void place_matrix(model::TensorId id);
  void convert(Converted& group, const Progress& progress, std::size_t total);

  const model::Model& model_;
  ContextPtr context_;
  BufferPtr mapping_;
  std::vector<Converted> converted_;
  std::map<model::TensorId, ggml_tensor*> plain_, matrices_;
  std::size_t mapped_bytes_ = 0, converted_bytes_ = 0;
};

}  // namespace coppice::executor
