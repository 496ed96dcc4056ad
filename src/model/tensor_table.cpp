#include "model/tensor_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "model/load_error.h"

namespace coppice::model {

namespace {

constexpr std::int32_t kF32 = 0;  // GGUF tensor type

}  // namespace

std::int64_t TensorTable::rows(const std::string& name) const {
  const int id = file_.find(name);
  if (id < 0) throw LoadError(fmt::format("{} lacks the tensor {}", file_.path(), name));
  return file_.tensors()[static_cast<std::size_t>(id)].shape.back();
}

TensorId TensorTable::require(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const TensorId id = optional(name, shape);
  if (id == kNoTensor) throw LoadError(fmt::format("{} lacks the tensor {}", file_.path(), name));
  return id;
}

TensorId TensorTable::optional(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const TensorId id = file_.find(name);
  if (id < 0) return kNoTensor;
  const TensorInfo& t = file_.tensors()[static_cast<std::size_t>(id)];
  if (t.shape != shape) {
    throw LoadError(fmt::format("{}: tensor {} has the shape [{}] where [{}] is needed", file_.path(), name,
                                fmt::join(t.shape, ", "), fmt::join(shape, ", ")));
  }
  if (shape.size() == 1 ? t.type != kF32 : !holds_weights(t.type)) {
    throw LoadError(fmt::format("{}: tensor {} has the type {} where {} is needed", file_.path(), name,
                                tensor_type_name(t.type), shape.size() == 1 ? "F32" : "one of weights"));
  }
  return id;
}

LinearSpec TensorTable::linear(const std::string& name, std::int64_t n_in, std::int64_t n_out) const {
  return {require(name + ".weight", {n_in, n_out}), optional(name + ".bias", {n_out})};
}

std::vector<LinearSpec> TensorTable::split(const std::string& name, std::int64_t n_in,
                                           std::span<const std::int64_t> n_out) const {
  const LinearSpec whole = linear(name, n_in, std::accumulate(n_out.begin(), n_out.end(), std::int64_t{0}));
  std::vector<LinearSpec> parts;
  for (const TensorId id : file_.split(whole.weight, n_out)) parts.push_back({.weight = id});
  if (whole.bias != kNoTensor) {
    const std::vector<TensorId> biases = file_.split(whole.bias, n_out);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].bias = biases[i];
  }
  return parts;
}

}  // namespace coppice::model
