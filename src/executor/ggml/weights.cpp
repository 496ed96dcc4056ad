#include "executor/ggml/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>
#include <span>

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

/// Our packed form, if this CPU multiplies it fast.
std::optional<matmul::QuantType> packed_type(ggml_type type) {
  std::optional<matmul::QuantType> packed;
  if (type == GGML_TYPE_Q4_0) packed = matmul::QuantType::kQ4_0;
  if (type == GGML_TYPE_Q4_1) packed = matmul::QuantType::kQ4_1;
  if (type == GGML_TYPE_Q8_0) packed = matmul::QuantType::kQ8_0;
  return packed && matmul::QuantMatrix::supports(*packed) ? packed : std::nullopt;
}

constexpr std::size_t kMostTogether = 3;

/// What becomes of products.
enum class Then : std::uint8_t { kNothing, kPlus, kGated };

/// Packed matrices times one x as a node of the graph: the first one's product, then the next one's. Sources: x; the norm's
/// weights, if `Norm`; what is added, if kPlus.
template <bool Norm, Then What>
void run_packed(ggml_tensor* node, int, int n_workers, void* packed_group) {
  const auto& group = *static_cast<const PackedGroup*>(packed_group);
  const auto source = [&](int i) { return static_cast<const float*>(node->src[i]->data); };
  const auto n_rows = static_cast<int>(node->src[0]->ne[1]);
  auto* y = static_cast<float*>(node->data);
  const float* plus = What == Then::kPlus ? source(Norm ? 2 : 1) : nullptr;
  std::array<matmul::QuantMatrix::Product, kMostTogether> products{};
  for (std::size_t i = 0; i < group.matrices.size(); ++i) {
    products[i] = {group.matrices[i], y, plus};
    y += std::ptrdiff_t{group.matrices[i]->n_out()} * n_rows;
  }
  const matmul::QuantMatrix::Rows rows{source(0), n_rows, Norm ? source(1) : nullptr, group.norm_eps};
  if (What == Then::kGated) {
    matmul::QuantMatrix::multiply_gated(products[0], products[1], rows, group.claims, n_workers);
  } else {
    matmul::QuantMatrix::multiply(std::span(products).first(group.matrices.size()), rows, group.claims, n_workers);
  }
}

template <Then What>
ggml_custom_op_t runner(bool norm) {
  return norm ? run_packed<true, What> : run_packed<false, What>;
}

ggml_tensor* packed_node(ggml_context* context, const PackedGroup& group, std::int64_t ne0, std::int64_t ne1,
                         ggml_tensor* x, ggml_tensor* norm, ggml_tensor* plus, bool gated = false) {
  std::array<ggml_tensor*, 3> sources = {x};
  int n = 1;
  if (norm) sources[static_cast<std::size_t>(n++)] = norm;
  if (plus) sources[static_cast<std::size_t>(n++)] = plus;
  const auto run = gated ? runner<Then::kGated>(norm) : plus ? runner<Then::kPlus>(norm) : runner<Then::kNothing>(norm);
  return ggml_custom_4d(context, GGML_TYPE_F32, ne0, ne1, 1, 1, sources.data(), n, run, GGML_N_TASKS_MAX,
                        const_cast<PackedGroup*>(&group));
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
  std::size_t done = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    map(layer.attn_norm);
    map(layer.ffn_norm);
    for (const model::LinearSpec* l : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      place_matrix(l->weight);
      if (l->bias != model::kNoTensor) map(l->bias);
    }
    join({layer.q.weight, layer.k.weight, layer.v.weight});
    join({layer.gate.weight, layer.up.weight});
    if (progress) progress("weights", 0.9 * static_cast<double>(++done) / static_cast<double>(spec.layers.size()));
  }
  for (auto& [ids, group] : groups_) group.norm_eps = spec.norm_eps;
  for (Converted& c : converted_) convert(c);
  for (const auto& [id, tensor] : plain_) mapped_bytes_ += ggml_nbytes(tensor);
}

ggml_tensor* Weights::describe(ggml_context* context, const model::TensorInfo& info) const {
  ggml_tensor* t = ggml_new_tensor(context, static_cast<ggml_type>(info.type), static_cast<int>(info.shape.size()),
                                   info.shape.data());
  return ggml_set_name(t, info.name.c_str());
}

ggml_tensor* Weights::map(model::TensorId id) {
  ggml_tensor*& t = plain_[id];
  if (t) return t;
  const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
  t = describe(context_.get(), info);
  ggml_backend_tensor_alloc(mapping_.get(), t, const_cast<std::byte*>(model_.file->bytes().data()) + info.offset);
  return t;
}

void Weights::place_matrix(model::TensorId id) {
  if (matrices_.contains(id) || place_packed(id)) return;
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (!cpu) throw model::LoadError("ggml was built without its CPU backend");
  const auto types = extra_buffer_types(cpu);
  if (std::ranges::any_of(types, [&](ggml_backend_buffer_type_t type) { return place_in_buffer(id, type); })) return;
  matrices_[id].tensor = map(id);
}

bool Weights::place_in_buffer(model::TensorId id, ggml_backend_buffer_type_t type) {
  const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
  const ContextPtr trial = make_context(1);
  if (!can_multiply(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), type, describe(trial.get(), info))) {
    return false;
  }
  auto group = std::ranges::find(converted_, type, &Converted::type);
  if (group == converted_.end()) {
    converted_.push_back({type, make_context(model_.file->tensors().size()), {}, nullptr});
    group = converted_.end() - 1;
  }
  matrices_[id].tensor = describe(group->context.get(), info);
  group->ids.push_back(id);
  return true;
}

bool Weights::place_packed(model::TensorId id) {
  const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
  const auto type = packed_type(static_cast<ggml_type>(info.type));
  if (!type) return false;
  auto& packed = matrices_[id].packed;
  packed = std::make_unique<matmul::QuantMatrix>(*type, static_cast<int>(info.shape[0]),
                                                 static_cast<int>(info.shape[1]), model_.file->tensor_bytes(info));
  converted_bytes_ += packed->bytes();
  groups_[{id}].matrices = {packed.get()};
  let_go(id);
  return true;
}

void Weights::join(const std::vector<model::TensorId>& ids) {
  assert(ids.size() <= kMostTogether);
  std::vector<const matmul::QuantMatrix*> group;
  for (const model::TensorId id : ids) group.push_back(matrices_.at(id).packed.get());
  const auto alike = [&](const matmul::QuantMatrix* m) { return m && m->type() == group.front()->type(); };
  if (std::ranges::all_of(group, alike)) groups_[ids].matrices = std::move(group);
}

void Weights::convert(Converted& group) {
  group.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(group.context.get(), group.type));
  if (!group.buffer) {
    throw model::LoadError(fmt::format("not enough memory for the weights in the form {} of {}",
                                       ggml_backend_buft_name(group.type), model_.file->path()));
  }
  ggml_backend_buffer_set_usage(group.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (const model::TensorId id : group.ids) {
    const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
    const std::span<const std::byte> bytes = model_.file->tensor_bytes(info);
    ggml_backend_tensor_set(matrices_.at(id).tensor, bytes.data(), 0, bytes.size());
    let_go(id);
  }
  converted_bytes_ += ggml_backend_buffer_get_size(group.buffer.get());
}

/// The mapping's pages of a matrix that was converted, unless something reads them too.
void Weights::let_go(model::TensorId id) {
  const model::TensorInfo& info = model_.file->tensors()[static_cast<std::size_t>(id)];
  if (!plain_.contains(id)) model_.file->mapping().let_go(info.offset, info.bytes);
}

std::vector<ggml_tensor*> Weights::multiply(ggml_context* context, const std::vector<model::TensorId>& ids,
                                            Rows rows) const {
  std::vector<ggml_tensor*> products;
  const auto group = groups_.find(ids);
  if (group == groups_.end()) {
    rows = {normalised(context, rows)};
    for (const model::TensorId id : ids) products.push_back(multiply(context, id, rows));
    return products;
  }
  const std::int64_t n_rows = rows.x->ne[1];
  std::int64_t n_out = 0;
  for (const matmul::QuantMatrix* matrix : group->second.matrices) n_out += matrix->n_out();
  ggml_tensor* all = packed_node(context, group->second, n_out * n_rows, 1, rows.x, plain(rows.norm), nullptr);
  std::size_t offset = 0;
  for (const matmul::QuantMatrix* matrix : group->second.matrices) {
    const std::size_t row = static_cast<std::size_t>(matrix->n_out()) * sizeof(float);
    products.push_back(ggml_view_2d(context, all, matrix->n_out(), n_rows, row, offset));
    offset += row * static_cast<std::size_t>(n_rows);
  }
  return products;
}

ggml_tensor* Weights::multiply(ggml_context* context, model::TensorId id, Rows rows, ggml_tensor* plus) const {
  const auto group = groups_.find({id});
  if (group != groups_.end()) {
    return packed_node(context, group->second, group->second.matrices.front()->n_out(), rows.x->ne[1], rows.x,
                       plain(rows.norm), plus);
  }
  ggml_tensor* product = ggml_mul_mat(context, matrices_.at(id).tensor, normalised(context, rows));
  return plus ? ggml_add(context, product, plus) : product;
}

ggml_tensor* Weights::multiply_gated(ggml_context* context, model::TensorId gate, model::TensorId up, Rows rows) const {
  const auto group = groups_.find({gate, up});
  if (group == groups_.end()) {
    const std::vector<ggml_tensor*> both = multiply(context, {gate, up}, rows);
    return ggml_swiglu_split(context, both[0], both[1]);
  }
  // Room for both products; the first becomes the result.
  const std::int64_t n_out = group->second.matrices.front()->n_out(), n_rows = rows.x->ne[1];
  ggml_tensor* all =
      packed_node(context, group->second, 2 * n_out * n_rows, 1, rows.x, plain(rows.norm), nullptr, true);
  return ggml_view_2d(context, all, n_out, n_rows, static_cast<std::size_t>(n_out) * sizeof(float), 0);
}

ggml_tensor* Weights::normalised(ggml_context* context, Rows rows) const {
  if (rows.norm == model::kNoTensor) return rows.x;
  return ggml_mul(context, ggml_rms_norm(context, rows.x, model_.spec.norm_eps), plain(rows.norm));
}

}  // namespace coppice::executor
