// TensorTable: looks a file's tensors up by name and insists on their shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/gguf_file.h"
#include "model/model.h"

namespace coppice::model {

/// Borrows the file, and may split its tensors. All functions throw LoadError.
class TensorTable {
 public:
  explicit TensorTable(GgufFile& file) : file_(file) {}

  bool has(const std::string& name) const { return file_.find(name) >= 0; }
  /// The slowest dimension of a tensor that must be there.
  std::int64_t rows(const std::string& name) const;
  /// Tensors of one dimension are f32.
  TensorId require(const std::string& name, const std::vector<std::int64_t>& shape) const;
  /// Of any number of dimensions.
  TensorId require_f32(const std::string& name, const std::vector<std::int64_t>& shape) const;
  /// kNoTensor when it isn't there.
  TensorId optional(const std::string& name, const std::vector<std::int64_t>& shape) const;

  /// name + ".weight" and, if there is one, name + ".bias".
  LinearSpec linear(const std::string& name, std::int64_t n_in, std::int64_t n_out) const;
  /// n matrices of one shape in one tensor, [n_in, n_out, n], and their biases, f32 [n_out, n].
  LinearSpec linears(const std::string& name, std::int64_t n_in, std::int64_t n_out, std::int64_t n) const;
  /// Likewise, where each of the n matrices has the outputs of several. Without biases.
  std::vector<LinearSpec> split_each(const std::string& name, std::int64_t n_in, std::span<const std::int64_t> n_out,
                                     std::int64_t n) const;
  /// A matrix and a bias whose outputs are those of several, one after the other.
  std::vector<LinearSpec> split(const std::string& name, std::int64_t n_in, std::span<const std::int64_t> n_out) const;

 private:
  GgufFile& file_;
};

}  // namespace coppice::model
