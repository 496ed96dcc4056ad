#include "model/tensor_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "model/load_error.h"

namespace coppice::model {

namespace {

constexpr std::int32_t kTypeF32 = 0;  // GGUF tensor type

/// Without the last dimensions that are 1: files have them or not.
std::span<const std::int64_t> significant(std::span<const std::int64_t> shape) {
  while (shape.size() > 1 && shape.back() == 1) shape = shape.first(shape.size() - 1);
  return shape;
}

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

TensorId TensorTable::require_f32(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const TensorId id = require(name, shape);
  const std::int32_t type = file_.tensors()[static_cast<std::size_t>(id)].type;
  if (type == kTypeF32) return id;
  throw LoadError(
      fmt::format("{}: tensor {} has the type {} where F32 is needed", file_.path(), name, tensor_type_name(type)));
}

TensorId TensorTable::optional(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const TensorId id = file_.find(name);
  if (id < 0) return kNoTensor;
  const TensorInfo& t = file_.tensors()[static_cast<std::size_t>(id)];
  const auto wanted = significant(shape);
  if (!std::ranges::equal(significant(t.shape), wanted)) {
    throw LoadError(fmt::format("{}: tensor {} has the shape [{}] where [{}] is needed", file_.path(), name,
                                fmt::join(t.shape, ", "), fmt::join(shape, ", ")));
  }
  if (wanted.size() == 1 ? t.type != kTypeF32 : !holds_weights(t.type)) {
    throw LoadError(fmt::format("{}: tensor {} has the type {} where {} is needed", file_.path(), name,
                                tensor_type_name(t.type), wanted.size() == 1 ? "F32" : "one of weights"));
  }
  return id;
}

LinearSpec TensorTable::linear(const std::string& name, std::int64_t n_in, std::int64_t n_out) const {
  return {require(name + ".weight", {n_in, n_out}), optional(name + ".bias", {n_out})};
}

LinearSpec TensorTable::linears(const std::string& name, std::int64_t n_in, std::int64_t n_out, std::int64_t n) const {
  const LinearSpec all{require(name + ".weight", {n_in, n_out, n}), optional(name + ".bias", {n_out, n})};
  if (all.bias == kNoTensor) return all;
  const TensorInfo& bias = file_.tensors()[static_cast<std::size_t>(all.bias)];
  if (bias.type == kTypeF32) return all;
  throw LoadError(fmt::format("{}: tensor {} has the type {} where F32 is needed", file_.path(), bias.name,
                              tensor_type_name(bias.type)));
}

std::vector<LinearSpec> TensorTable::split_each(const std::string& name, std::int64_t n_in,
                                                std::span<const std::int64_t> n_out, std::int64_t n) const {
  const std::int64_t all = std::accumulate(n_out.begin(), n_out.end(), std::int64_t{0});
  if (has(name + ".bias")) throw LoadError(fmt::format("{}: {}.bias is not built yet", file_.path(), name));
  std::vector<LinearSpec> parts;
  for (const TensorId id : file_.split(require(name + ".weight", {n_in, all, n}), n_out))
    parts.push_back({.weight = id});
  return parts;
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
