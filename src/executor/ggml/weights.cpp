#include "executor/ggml/weights.h"

#include <fmt/format.h>

#include <algorithm>

namespace coppice::executor {

namespace {

/// The CPU's buffer types that hold matrices in another form, best first.
std::vector<ggml_backend_buffer_type_t> extra_buffer_types(ggml_backend_dev_t cpu) {
  std::vector<ggml_backend_buffer_type_t> types;
  auto* get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
  if (!get) return types;
  for (ggml_backend_buffer_type_t* t = get(cpu); t && *t; ++t) types.push_back(*t);
  return types;
}

/// Whether `type` can multiply a matrix like `weight`, asked the only way there is: with a trial node.
bool can_multiply(ggml_backend_dev_t cpu, ggml_backend_buffer_type_t type, const ggml_tensor* weight) {
  const ContextPtr context = make_context(4);
  ggml_tensor* w = ggml_dup_tensor(context.get(), weight);
  ggml_tensor* rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, w->ne[0], 512);
  const BufferPtr empty(ggml_backend_buft_alloc_buffer(type, 0));
  w->buffer = empty.get();
  return ggml_backend_dev_supports_op(cpu, ggml_mul_mat(context.get(), w, rows));
}

}  // namespace

Weights::Weights(const model::Model& model, const Progress& progress) : model_(model) {
  const auto& spec = model.spec;
  const model::GgufFile& file = *model.file;
  context_ = make_context(2 * file.tensors().size() + 16);
  // ggml never writes to weights; the mapping is read-only and would fault if it did.
  mapping_.reset(ggml_backend_cpu_buffer_from_ptr(const_cast<std::byte*>(file.bytes().data()), file.size()));

  map(spec.embedding);
  map(spec.output_norm);
  if (spec.rope.freq_factors != model::kNoTensor) map(spec.rope.freq_factors);
  place_matrix(spec.output);
  for (const model::LayerSpec& layer : spec.layers) {
    map(layer.attn_norm);
    map(layer.ffn_norm);
    for (const model::LinearSpec* l : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      place_matrix(l->weight);
      if (l->bias != model::kNoTensor) map(l->bias);
    }
  }
  std::size_t total = 0;
  for (const Converted& c : converted_) total += c.ids.size();
  for (Converted& c : converted_) convert(c, progress, total);
  for (const auto& [id, tensor] : plain_) mapped_bytes_ += ggml_nbytes(tensor);
}

ggml_tensor* Weights::describe(ggml_context* context, const model::TensorInfo& info, ggml_type type) const {
  ggml_tensor* t = ggml_new_tensor(context, type, static_cast<int>(info.shape.size()), info.shape.data());
  return ggml_set_name(t, info.name.c_str());
}

ggml_tensor* Weights::map(model::TensorId id) {
  ggml_tensor*& t = plain_[id];
  if (t) return t;
  const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
  t = describe(context_.get(), info, static_cast<ggml_type>(info.type));
  ggml_backend_tensor_alloc(mapping_.get(), t, const_cast<std::byte*>(model_.file->bytes().data()) + info.offset);
  return t;
}

void Weights::place_matrix(model::TensorId id) {
  if (matrices_.contains(id)) return;
  const auto type = static_cast<ggml_type>(model_.file->tensors()[static_cast<std::size_t>(id)].type);
  if (place_converted(id, type)) return;
  if (type == GGML_TYPE_Q4_1 && place_converted(id, GGML_TYPE_Q4_0)) return;
  matrices_[id].tensor = map(id);
}

/// Whether a buffer type takes the matrix as one of `type`.
bool Weights::place_converted(model::TensorId id, ggml_type type) {
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (!cpu) throw model::LoadError("ggml was built without its CPU backend");
  const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
  const ContextPtr trial = make_context(1);
  const ggml_tensor* like = describe(trial.get(), info, type);
  for (ggml_backend_buffer_type_t buffer_type : extra_buffer_types(cpu)) {
    if (!can_multiply(cpu, buffer_type, like)) continue;
    auto group =
        std::find_if(converted_.begin(), converted_.end(), [&](const Converted& c) { return c.type == buffer_type; });
    if (group == converted_.end()) {
      converted_.push_back({buffer_type, make_context(model_.file->tensors().size()), {}, nullptr});
      group = converted_.end() - 1;
    }
    matrices_[id].tensor = describe(group->context.get(), info, type);
    group->ids.push_back(id);
    return true;
  }
  return false;
}

void Weights::convert(Converted& group, const Progress& progress, std::size_t total) {
  group.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(group.context.get(), group.type));
  if (!group.buffer) {
    throw model::LoadError(fmt::format("not enough memory for the weights in the form {} of {}",
                                       ggml_backend_buft_name(group.type), model_.file->path()));
  }
  ggml_backend_buffer_set_usage(group.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  std::size_t done = 0;
  for (const model::TensorId id : group.ids) {
    const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
    const std::span<const std::byte> bytes = model_.file->tensor_bytes(info);
    Matrix& matrix = matrices_.at(id);
    if (matrix.tensor->type == static_cast<ggml_type>(info.type)) {
      ggml_backend_tensor_set(matrix.tensor, bytes.data(), 0, bytes.size());
    } else {
      const std::vector<std::byte> quants = BlockOffsets::without_offsets(bytes);
      ggml_backend_tensor_set(matrix.tensor, quants.data(), 0, quants.size());
      matrix.offsets =
          std::make_unique<BlockOffsets>(bytes, static_cast<int>(info.shape[0]), static_cast<int>(info.shape[1]));
      converted_bytes_ += matrix.offsets->bytes();
    }
    if (!plain_.contains(id)) model_.file->mapping().let_go(info.offset, info.bytes);
    if (progress) progress("weights", static_cast<double>(++done) / static_cast<double>(total));
  }
  converted_bytes_ += ggml_backend_buffer_get_size(group.buffer.get());
}

ggml_tensor* Weights::multiply(ggml_context* context, model::TensorId id, ggml_tensor* x) const {
  const Matrix& matrix = matrices_.at(id);
  ggml_tensor* y = ggml_mul_mat(context, matrix.tensor, x);
  return matrix.offsets ? matrix.offsets->add_to(context, y, x) : y;
}

}  // namespace coppice::executor
