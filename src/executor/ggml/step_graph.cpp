#include "executor/ggml/step_graph.h"

#include <algorithm>

namespace coppice::executor {

namespace {

constexpr std::size_t kNodesPerLayer = 40;
constexpr std::size_t kNodesPerUnit = 24;  // in each layer

/// Source: positions.
void run_turns(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& rope = *static_cast<const attention::Rope*>(userdata);
  const auto* positions = static_cast<const std::int32_t*>(dst->src[0]->data);
  for (std::int64_t i = worker; i < dst->ne[1]; i += n_workers) {
    rope.turn(positions[i], static_cast<float*>(dst->data) + i * dst->ne[0]);
  }
}

}  // namespace

GraphKey StepGraph::key_for(const StepPlan& plan, const Attention& attention) {
  GraphKey key{plan.shape.n_rows, plan.shape.n_outputs, {}};
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const UnitShape& shape = plan.shape.units[i];
    key.units.push_back({shape, attention.in_place(plan.units[i], shape)});
  }
  return key;
}

StepGraph::StepGraph(const DecoderParts& parts, GraphKey key) : parts_(parts), key_(std::move(key)) {
  const std::size_t n_layers = parts.spec->layers.size();
  const std::size_t nodes = n_layers * (kNodesPerLayer + kNodesPerUnit * key_.units.size()) + 64;
  context_ = make_context(nodes, nodes);
  graph_ = ggml_new_graph_custom(context_.get(), nodes, false);
  declare_inputs();
  build();
}

void StepGraph::declare_inputs() {
  ggml_context* c = context_.get();
  tokens_ = ggml_new_tensor_1d(c, GGML_TYPE_I32, key_.n_rows);
  positions_ = ggml_new_tensor_1d(c, GGML_TYPE_I32, key_.n_rows);
  for (ggml_tensor* t : {tokens_, positions_}) ggml_set_input(t);
  if (key_.n_outputs > 0) {
    output_rows_ = ggml_new_tensor_1d(c, GGML_TYPE_I32, key_.n_outputs);
    ggml_set_input(output_rows_);
  }
  for (std::size_t g = 0; g < parts_.groups.size(); ++g) {
    slots_.push_back(ggml_new_tensor_1d(c, GGML_TYPE_I64, key_.n_rows));
    ggml_set_input(slots_.back());
  }
  for (const UnitKey& unit : key_.units) {
    auto& groups = units_.emplace_back();
    for (std::size_t g = 0; g < parts_.groups.size(); ++g) {
      UnitInputs in = parts_.attention->declare(c, unit, g);
      if (in.ids) ggml_set_input(in.ids);
      if (in.mask) ggml_set_input(in.mask);
      groups.push_back(std::move(in));
    }
  }
}

ggml_tensor* StepGraph::linear(ggml_tensor* x, const model::LinearSpec& l, ggml_tensor* plus) {
  return add_bias(parts_.weights->multiply(context_.get(), l.weight, {x}, plus), l);
}

std::vector<ggml_tensor*> StepGraph::linear(Weights::Rows rows, std::initializer_list<const model::LinearSpec*> all) {
  std::vector<model::TensorId> ids;
  for (const model::LinearSpec* l : all) ids.push_back(l->weight);
  std::vector<ggml_tensor*> products = parts_.weights->multiply(context_.get(), ids, rows);
  for (std::size_t i = 0; i < ids.size(); ++i) products[i] = add_bias(products[i], *all.begin()[i]);
  return products;
}

ggml_tensor* StepGraph::add_bias(ggml_tensor* x, const model::LinearSpec& l) {
  return l.bias == model::kNoTensor ? x : ggml_add(context_.get(), x, parts_.weights->plain(l.bias));
}

/// Each unit's rows through its own call, put together in row order. Returns [n_embd_q, n_rows].
ggml_tensor* StepGraph::attend_units(ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, std::size_t group) {
  ggml_context* c = context_.get();
  const auto call = [&](std::size_t u, ggml_tensor* rows) {
    return parts_.attention->build(c, rows, k, v, key_.units[u], group, units_[u][group]);
  };
  if (key_.units.size() == 1) return call(0, q);
  ggml_tensor* all = ggml_new_tensor_2d(c, GGML_TYPE_F32, q->ne[0] * q->ne[1], key_.n_rows);
  std::int64_t row = 0;
  for (std::size_t u = 0; u < key_.units.size(); ++u) {
    const UnitShape& shape = key_.units[u].shape;
    const std::int64_t n = std::int64_t{shape.n_streams} * shape.n_rows;
    const auto at = static_cast<std::size_t>(row);
    ggml_tensor* rows = ggml_view_3d(c, q, q->ne[0], q->ne[1], n, q->nb[1], q->nb[2], at * q->nb[2]);
    all = ggml_set_2d_inplace(c, all, call(u, rows), all->nb[1], at * all->nb[1]);
    row += n;
  }
  return all;
}

/// x: [n_heads * head_dim, n_rows]. Returns [head_dim, n_heads, n_rows].
ggml_tensor* StepGraph::rope(ggml_tensor* x) {
  const model::RopeSpec& r = parts_.spec->rope;
  const int head_dim = parts_.spec->head_dim;
  x = ggml_reshape_3d(context_.get(), x, head_dim, x->ne[0] / head_dim, x->ne[1]);
  return ggml_rope_ext(context_.get(), x, positions_, parts_.weights->plain(r.freq_factors), r.dims,
                       GGML_ROPE_TYPE_NORMAL, 0, r.base, r.freq_scale, 0.0F, 1.0F, 32.0F, 1.0F);
}

EnteredRows StepGraph::enter_rows(const std::vector<ggml_tensor*>& qkv, int layer_slot, ggml_tensor* slots) {
  ggml_context* c = context_.get();
  const KvStore& store = *parts_.store;
  if (!parts_.attention->portable()) return store.enter_rows(c, layer_slot, {qkv[0], qkv[1], qkv[2], turns_, slots});
  ggml_tensor* keys = ggml_reshape_2d(c, rope(qkv[1]), store.n_embd_kv(), key_.n_rows);
  return {rope(qkv[0]), ggml_set_rows(c, store.k(layer_slot), keys, slots),
          ggml_set_rows(c, store.v(layer_slot), qkv[2], slots)};
}

/// x + attention(x). In the last layer, only the rows whose logits are wanted go on.
ggml_tensor* StepGraph::attend(ggml_tensor* x, int layer, bool last) {
  ggml_context* c = context_.get();
  const model::ModelSpec& spec = *parts_.spec;
  const auto at = static_cast<std::size_t>(layer);
  const model::LayerSpec& l = spec.layers[at];
  const auto group = static_cast<std::size_t>(parts_.group_of_layer[at]);
  const int layer_slot = parts_.slot_of_layer[at];

  const std::vector<ggml_tensor*> qkv = linear({x, l.attn_norm}, {&l.q, &l.k, &l.v});
  const EnteredRows rows = enter_rows(qkv, layer_slot, slots_[group]);
  for (ggml_tensor* t : {rows.q, rows.k, rows.v})
    ggml_build_forward_expand(graph_, t);  // before any reader of the pool
  if (last && key_.n_outputs == 0) return nullptr;
  ggml_tensor* out = attend_units(rows.q, rows.k, rows.v, group);
  if (last) {
    out = ggml_get_rows(c, out, output_rows_);
    x = ggml_get_rows(c, x, output_rows_);
  }
  return linear(out, l.o, x);
}

ggml_tensor* StepGraph::feed_forward(ggml_tensor* x, const model::LayerSpec& layer) {
  const Weights::Rows rows{x, layer.ffn_norm};
  ggml_context* c = context_.get();
  if (layer.gate.bias == model::kNoTensor && layer.up.bias == model::kNoTensor) {
    return linear(parts_.weights->multiply_gated(c, layer.gate.weight, layer.up.weight, rows), layer.down, x);
  }
  const std::vector<ggml_tensor*> both = linear(rows, {&layer.gate, &layer.up});
  return linear(ggml_swiglu_split(c, both[0], both[1]), layer.down, x);
}

void StepGraph::build() {
  ggml_context* c = context_.get();
  const model::ModelSpec& spec = *parts_.spec;
  const int n_layers = static_cast<int>(spec.layers.size());
  ggml_tensor* x = ggml_get_rows(c, parts_.weights->plain(spec.embedding), tokens_);
  if (!parts_.attention->portable()) {
    turns_ = ggml_custom_4d(c, GGML_TYPE_F32, static_cast<std::int64_t>(parts_.rope->turn_size()), key_.n_rows, 1, 1,
                            &positions_, 1, run_turns, GGML_N_TASKS_MAX, const_cast<attention::Rope*>(parts_.rope));
  }
  for (int i = 0; i < n_layers; ++i) {
    x = attend(x, i, i + 1 == n_layers);
    if (!x) return;
    x = feed_forward(x, spec.layers[static_cast<std::size_t>(i)]);
  }
  logits_ = parts_.weights->multiply(c, spec.output, {x, spec.output_norm});
  ggml_set_output(logits_);
  ggml_build_forward_expand(graph_, logits_);
}

void StepGraph::fill(const Batch& batch, const StepPlan& plan) {
  auto* tokens = static_cast<std::int32_t*>(tokens_->data);
  auto* positions = static_cast<std::int32_t*>(positions_->data);
  int padding = 0;
  for (std::size_t i = 0; i < plan.batch_row.size(); ++i) {
    const auto row = static_cast<std::size_t>(plan.batch_row[i]);
    const bool real = plan.batch_row[i] >= 0;
    tokens[i] = real ? batch.tokens[row] : 0;
    positions[i] = real ? batch.positions[row] : 0;
    for (std::size_t g = 0; g < slots_.size(); ++g) {
      static_cast<std::int64_t*>(slots_[g]->data)[i] = real ? batch.slots[g][row] : parts_.store->scratch_slot(padding);
    }
    if (!real) ++padding;
  }
  if (output_rows_) std::ranges::copy(plan.output_rows, static_cast<std::int32_t*>(output_rows_->data));
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (std::size_t g = 0; g < units_[u].size(); ++g) {
      parts_.attention->fill(batch, plan.units[u], key_.units[u], g, units_[u][g]);
    }
  }
}

}  // namespace coppice::executor
