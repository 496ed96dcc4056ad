// Weights: the model's tensors, in the form in which they are used. A matrix that rows are multiplied by goes to the
// first of these that takes its type: our own packed form (matmul/), ggml's AMX buffers, ggml's other repacked buffers.
// These are converted copies, and the file's pages are given back. All other tensors, and matrices that none of them
// takes, are read from the file's mapping. So an embedding that is the output matrix too may be held twice.
//
// A layer's experts are packed, all three matrices of them, or read from the mapping.
//
// Owns the buffers; borrows the mapping: the Model must outlive it. Immutable after construction, but while it sleeps;
// any thread may read.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "executor/base/progress.h"
#include "executor/ggml/store/ggml_ptr.h"
#include "matmul/quant_matrix.h"
#include "model/model.h"

namespace coppice::executor {

class Weights {
 public:
  /// A matrix that rows are multiplied by: one of the two.
  struct Matrix {
    ggml_tensor* tensor = nullptr;
    std::unique_ptr<matmul::QuantMatrix> packed;
  };

  /// Tells stage "weights" of the progress. Throws model::LoadError when memory is refused.
  Weights(const model::Model& model, const Progress& progress);

  /// REQUIRES: id is one of ModelSpec::matrices().
  const Matrix& matrix(model::TensorId id) const { return matrices_[static_cast<std::size_t>(id)]; }

  /// A tensor as the file has it: the embedding, or one that isn't a matrix. nullptr for kNoTensor.
  ggml_tensor* plain(model::TensorId id) const {
    return id == model::kNoTensor ? nullptr : plain_[static_cast<std::size_t>(id)];
  }

  /// Gives all memory back. REQUIRES: nobody reads until wake() has said that all is there.
  void sleep();
  /// Converts the file's weights again until then, at least one of them: each gets where it was. True: all are there.
  bool wake(std::chrono::steady_clock::time_point until);

  std::size_t mapped_bytes() const { return mapped_bytes_; }        ///< read from the file's mapping
  std::size_t converted_bytes() const { return converted_bytes_; }  ///< in other forms

 private:
  /// Matrices in one of ggml's buffer types.
  struct Converted {
    ggml_backend_buffer_type_t type;
    ContextPtr context;
    std::vector<model::TensorId> ids;
    BufferPtr buffer;
  };

  const model::TensorInfo& info(model::TensorId id) const;
  ggml_tensor* describe(ggml_context* context, model::TensorId id) const;
  ggml_tensor* map(model::TensorId id);
  void place_experts(const model::ExpertsSpec& experts);
  void place_matrix(model::TensorId id);
  bool place_packed(model::TensorId id);
  bool place_in_buffer(model::TensorId id, ggml_backend_buffer_type_t type);
  void convert(Converted& group);
  void convert_again(model::TensorId id);
  void let_go(model::TensorId id);

  const model::Model& model_;
  ContextPtr context_;
  std::vector<BufferPtr> mappings_;  ///< [parts of the file]
  std::vector<Converted> converted_;
  std::vector<ggml_tensor*> plain_;  ///< [tensors of the file] nullptr: not mapped
  matmul::PackedMemory packed_memory_;
  std::vector<Matrix> matrices_;  ///< [tensors of the file]
  std::size_t mapped_bytes_ = 0, converted_bytes_ = 0;
  std::size_t awake_ = 0;  ///< so many of matrices_ are there again
};

}  // namespace coppice::executor
