#include "executor/ggml/store/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "model/cpu_device.h"
#include "port/mapping.h"

namespace coppice::executor {

namespace {

/// The CPU's buffer types that hold matrices in another form, best first.
std::vector<ggml_backend_buffer_type_t> extra_buffer_types(ggml_backend_dev_t cpu) {
  std::vector<ggml_backend_buffer_type_t> types;
  const auto get = model::cpu_function<ggml_backend_dev_get_extra_bufts_t>("ggml_backend_dev_get_extra_bufts");
  if (get == nullptr) return types;
  for (ggml_backend_buffer_type_t* t = get(cpu); t && *t; ++t) types.push_back(*t);
  return types;
}

/// Whether buffers of `type` can multiply a matrix like `weight`. ggml has no other question for it than a trial node.
bool can_multiply(ggml_backend_dev_t cpu, ggml_backend_buffer_type_t type, const ggml_tensor* weight) {
  const ContextPtr context = make_context(4);
  ggml_tensor* w = ggml_dup_tensor(context.get(), weight);
  ggml_tensor* rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, w->ne[0], 512);
  const BufferPtr empty(ggml_backend_buft_alloc_buffer(type, 0));
  w->buffer = empty.get();
  return ggml_backend_dev_supports_op(cpu, ggml_mul_mat(context.get(), w, rows));
}

/// Our packed form of a type, if there is one and this CPU multiplies it fast.
std::optional<matmul::QuantType> packed_type(ggml_type type) {
  using enum matmul::QuantType;
  static constexpr std::pair<ggml_type, matmul::QuantType> kTypes[] = {
      {GGML_TYPE_Q4_0, kQ4_0},    {GGML_TYPE_Q4_1, kQ4_1},    {GGML_TYPE_Q5_0, kQ5_0},  {GGML_TYPE_Q5_1, kQ5_1},
      {GGML_TYPE_Q8_0, kQ8_0},    {GGML_TYPE_Q4_K, kQ4K},     {GGML_TYPE_Q5_K, kQ5K},   {GGML_TYPE_Q6_K, kQ6K},
      {GGML_TYPE_IQ4_NL, kIq4Nl}, {GGML_TYPE_IQ4_XS, kIq4Xs}, {GGML_TYPE_MXFP4, kMxfp4}};
  const auto* found = std::ranges::find(kTypes, type, &std::pair<ggml_type, matmul::QuantType>::first);
  if (found == std::end(kTypes) || !matmul::QuantMatrix::supported()) return std::nullopt;
  return found->second;
}

}  // namespace

Weights::Weights(const model::Model& model, const Progress& progress)
    : model_(model), plain_(model.file->tensors().size()), matrices_(model.file->tensors().size()) {
  const model::GgufFile& file = *model.file;
  const std::vector<model::TensorId> matrices = model.spec.matrices();
  context_ = make_context(file.tensors().size());
  // ggml never writes to weights; the mapping is read-only and would fault if it did.
  for (int part = 0; part < file.parts(); ++part) {
    const auto bytes = file.bytes(part);
    mappings_.emplace_back(ggml_backend_cpu_buffer_from_ptr(const_cast<std::byte*>(bytes.data()), bytes.size()));
  }

  std::vector<bool> multiplied(file.tensors().size());
  for (const model::TensorId id : matrices) multiplied[static_cast<std::size_t>(id)] = true;
  multiplied[static_cast<std::size_t>(model.spec.embedding)] = false;  // its rows are read, whatever else it is
  for (model::TensorId id = 0; id < std::ssize(file.tensors()); ++id) {
    if (!multiplied[static_cast<std::size_t>(id)]) map(id);
  }
  for (const model::LayerSpec& layer : model.spec.layers) {
    if (layer.experts.n > 0) place_experts(layer.experts);
  }
  std::size_t done = 0;
  for (const model::TensorId id : matrices) {
    place_matrix(id);
    if (progress) progress("weights", 0.9 * static_cast<double>(++done) / static_cast<double>(matrices.size()));
  }
  for (Converted& c : converted_) convert(c);
  for (const ggml_tensor* t : plain_) {
    if (t) mapped_bytes_ += ggml_nbytes(t);
  }
}

const model::TensorInfo& Weights::info(model::TensorId id) const {
  return model_.file->tensors()[static_cast<std::size_t>(id)];
}

ggml_tensor* Weights::describe(ggml_context* context, model::TensorId id) const {
  const model::TensorInfo& t = info(id);
  ggml_tensor* tensor =
      ggml_new_tensor(context, static_cast<ggml_type>(t.type), static_cast<int>(t.shape.size()), t.shape.data());
  if (t.stride > 0) tensor->nb[2] = t.stride, tensor->nb[3] = t.stride * static_cast<std::size_t>(t.shape[2]);
  return ggml_set_name(tensor, t.name.c_str());
}

ggml_tensor* Weights::map(model::TensorId id) {
  ggml_tensor*& t = plain_[static_cast<std::size_t>(id)];
  if (!t) {
    t = describe(context_.get(), id);
    auto* bytes = const_cast<std::byte*>(model_.file->tensor_bytes(info(id)).data());
    ggml_backend_tensor_alloc(mappings_[static_cast<std::size_t>(info(id).file)].get(), t, bytes);
  }
  return t;
}

void Weights::place_matrix(model::TensorId id) {
  Matrix& matrix = matrices_[static_cast<std::size_t>(id)];
  if (matrix.tensor || matrix.packed || place_packed(id)) return;
  const auto types = extra_buffer_types(model::cpu_device());
  if (std::ranges::any_of(types, [&](ggml_backend_buffer_type_t type) { return place_in_buffer(id, type); })) return;
  matrix.tensor = map(id);
}

/// ggml's buffers take no matrices of experts. Ours take all three of a layer or none, or graphs would be a mixture,
/// too.
void Weights::place_experts(const model::ExpertsSpec& experts) {
  const std::array ids = {experts.gate.weight, experts.up.weight, experts.down.weight};
  const bool fit = std::ranges::all_of(
      ids, [this](model::TensorId id) { return packed_type(static_cast<ggml_type>(info(id).type)).has_value(); });
  for (const model::TensorId id : ids) {
    if (!fit) matrices_[static_cast<std::size_t>(id)].tensor = map(id);
  }
}

bool Weights::place_packed(model::TensorId id) {
  const model::TensorInfo& t = info(id);
  const auto type = packed_type(static_cast<ggml_type>(t.type));
  if (!type) return false;
  auto& packed = matrices_[static_cast<std::size_t>(id)].packed;
  packed = std::make_unique<matmul::QuantMatrix>(
      *type, static_cast<int>(t.shape[0]), static_cast<int>(t.shape[1]), model_.file->tensor_bytes(t),
      t.shape.size() > 2 ? static_cast<int>(t.shape[2]) : 1, t.stride, &packed_memory_);
  converted_bytes_ += packed->bytes();
  let_go(id);
  return true;
}

bool Weights::place_in_buffer(model::TensorId id, ggml_backend_buffer_type_t type) {
  const ContextPtr trial = make_context(1);
  if (!can_multiply(model::cpu_device(), type, describe(trial.get(), id))) return false;
  auto group = std::ranges::find(converted_, type, &Converted::type);
  if (group == converted_.end()) {
    converted_.push_back({type, make_context(model_.file->tensors().size()), {}, nullptr});
    group = converted_.end() - 1;
  }
  matrices_[static_cast<std::size_t>(id)].tensor = describe(group->context.get(), id);
  group->ids.push_back(id);
  return true;
}

void Weights::convert(Converted& group) {
  group.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(group.context.get(), group.type));
  if (!group.buffer) {
    throw model::LoadError(fmt::format("not enough memory for the weights in the form {} of {}",
                                       ggml_backend_buft_name(group.type), model_.file->path()));
  }
  ggml_backend_buffer_set_usage(group.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (const model::TensorId id : group.ids) convert_again(id);
  converted_bytes_ += ggml_backend_buffer_get_size(group.buffer.get());
}

/// Into the memory that it has. What is read from the mapping is there.
void Weights::convert_again(model::TensorId id) {
  const Matrix& m = matrix(id);
  const std::span<const std::byte> bytes = model_.file->tensor_bytes(info(id));
  if (m.packed) {
    m.packed->pack(bytes, info(id).stride);
  } else if (m.tensor != nullptr && m.tensor != plain(id)) {
    ggml_backend_tensor_set(m.tensor, bytes.data(), 0, bytes.size());
  } else {
    return;
  }
  let_go(id);
}

void Weights::sleep() {
  awake_ = 0;
  packed_memory_.let_go();
  for (const Converted& group : converted_) {
    auto* const base = static_cast<std::byte*>(ggml_backend_buffer_get_base(group.buffer.get()));
    port::give_back_pages({base, ggml_backend_buffer_get_size(group.buffer.get())});
  }
  for (const model::TensorInfo& tensor : model_.file->tensors()) model_.file->let_go(tensor);
}

bool Weights::wake(std::chrono::steady_clock::time_point until) {
  do convert_again(static_cast<model::TensorId>(awake_++));
  while (awake_ < matrices_.size() && std::chrono::steady_clock::now() < until);
  return awake_ == matrices_.size();
}

/// Gives back the file's pages of a matrix that was converted, unless its rows are read from there too.
void Weights::let_go(model::TensorId id) {
  if (!plain(id)) model_.file->let_go(info(id));
}

}  // namespace coppice::executor
