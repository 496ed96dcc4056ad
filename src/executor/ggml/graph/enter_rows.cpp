#include "executor/ggml/graph/enter_rows.h"

#include <cmath>
#include <vector>

#include "attention/cpu/new_rows.h"
#include "executor/ggml/graph/attention.h"

namespace coppice::executor {

namespace {

/// Source: StepInputs::positions. userdata: the Rope.
void run_turns(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& rope = *static_cast<const attention::Rope*>(userdata);
  const auto* positions = static_cast<const std::int32_t*>(dst->src[0]->data);
  for (std::int64_t i = worker; i < dst->ne[1]; i += n_workers) {
    float* const to = static_cast<float*>(dst->data) + i * dst->ne[0];
    const std::int64_t n = dst->ne[1];
    rope.has_axes() ? rope.turn({positions[i], positions[n + i], positions[2 * n + i]}, to)
                    : rope.turn(positions[i], to);
  }
}

/// What a node that enters rows points to.
struct EnterNode {
  attention::KvFormat format;
  model::HeadsSpec heads;
  const attention::Rope* rope = nullptr;  ///< nullptr: nothing turns
  bool writes = false;                    ///< false: there are queries only
};

/// Sources: q (which is dst); if the node writes, k, v, slots, pool of keys, pool of values; turns if there is a rope.
void run_enter(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& node = *static_cast<const EnterNode*>(userdata);
  const auto data = [&](int i) { return dst->src[i]->data; };
  attention::NewRows rows{.format = node.format,
                          .n_head = node.heads.n_head,
                          .n_kv_head = 0,
                          .head_dim = node.heads.head_dim,
                          .n = static_cast<int>(dst->ne[1]),
                          .queries = static_cast<float*>(dst->data)};
  if (node.rope) {
    rows.turns = static_cast<const float*>(data(node.writes ? 6 : 1));
    rows.turned_dims = node.rope->dims();
    rows.halves = node.rope->halves();
  }
  if (node.writes) {
    rows.n_kv_head = node.heads.n_kv_head;
    rows.keys = static_cast<float*>(data(1));
    rows.values = static_cast<const float*>(data(2));
    rows.slots = static_cast<const kv::Slot*>(data(3));
    rows.key_pool = static_cast<std::byte*>(data(4));
    rows.value_pool = static_cast<std::byte*>(data(5));
    rows.row_stride = dst->src[4]->nb[1];
  }
  attention::enter_rows(rows, worker, n_workers);
}

/// Sines and cosines of the rows' positions, the same for all layers with this rope: [2 * rope dims, n_rows].
ggml_tensor* turns(GraphBuilder& b, std::size_t index) {
  b.turns.resize(b.parts.ropes->size());
  if (!b.turns[index]) {
    const attention::Rope& rope = (*b.parts.ropes)[index];
    ggml_tensor* positions = b.inputs.positions;
    const std::int64_t n_rows = b.inputs.tokens->ne[0];
    b.turns[index] =
        ggml_custom_4d(b.context, GGML_TYPE_F32, static_cast<std::int64_t>(rope.turn_size()), n_rows, 1, 1, &positions,
                       1, run_turns, parts_for(16 * n_rows), const_cast<attention::Rope*>(&rope));
  }
  return b.turns[index];
}

/// Everything in one node of our own, in every KV format.
EnteredRows enter_in_one_node(GraphBuilder& b, const LayerRows& rows, const model::AttentionSpec& spec,
                              ggml_tensor* slots, ggml_tensor* keys, ggml_tensor* values) {
  EnterNode& node = b.keep<EnterNode>(
      EnterNode{.format = b.parts.store->layout().format, .heads = spec.heads, .writes = rows.k != nullptr});
  std::vector<ggml_tensor*> others;
  if (node.writes) others = {rows.k, rows.v, slots, keys, values};
  if (spec.rope != model::AttentionSpec::kNoRope) {
    node.rope = &(*b.parts.ropes)[static_cast<std::size_t>(spec.rope)];
    others.push_back(turns(b, static_cast<std::size_t>(spec.rope)));
  }
  ggml_tensor* q = others.empty()
                       ? rows.q
                       : ggml_custom_inplace(b.context, rows.q, others.data(), static_cast<int>(others.size()),
                                             run_enter, parts_for(ggml_nelements(rows.q)), &node);
  return {ggml_reshape_3d(b.context, q, spec.heads.head_dim, spec.heads.n_head, q->ne[1]), keys, values};
}

/// What ggml is to divide angles by so that they are the rope's: f32 [dims / 2]. The source is no matter.
void run_factors(ggml_tensor* dst, int worker, int, void* userdata) {
  if (worker != 0) return;
  const auto& rope = *static_cast<const attention::Rope*>(userdata);
  auto* factors = static_cast<float*>(dst->data);
  for (int i = 0; i < rope.dims() / 2; ++i) {
    factors[i] = static_cast<float>(std::pow(rope.base(), -2.0 * i / rope.dims()) / rope.angle(i));
  }
}

/// x: [n_heads * head_dim, n_rows]. Returns [head_dim, n_heads, n_rows].
ggml_tensor* turned(GraphBuilder& b, ggml_tensor* x, const model::AttentionSpec& spec) {
  const int head_dim = spec.heads.head_dim;
  x = ggml_reshape_3d(b.context, x, head_dim, x->ne[0] / head_dim, x->ne[1]);
  if (spec.rope == model::AttentionSpec::kNoRope) return x;
  const model::RopeSpec& r = b.parts.spec->ropes[static_cast<std::size_t>(spec.rope)];
  const model::YarnSpec yarn = r.yarn.value_or(model::YarnSpec{});
  const int mode = r.halves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  if (!yarn.whole_pairs) {  // ggml knows no other
    const attention::Rope& rope = (*b.parts.ropes)[static_cast<std::size_t>(spec.rope)];
    ggml_tensor* positions = b.inputs.positions;
    ggml_tensor* factors = ggml_custom_4d(b.context, GGML_TYPE_F32, r.dims / 2, 1, 1, 1, &positions, 1, run_factors,
                                          /*n_tasks=*/1, const_cast<attention::Rope*>(&rope));
    return ggml_rope_ext(b.context, x, positions, factors, r.dims, mode, 0, r.base, 1.0F, 0.0F, r.magnitude, 0.0F,
                         0.0F);
  }
  const float own_magnitude = r.yarn ? 1.0F + 0.1F * std::log(1.0F / r.freq_scale) : 1.0F;  // ggml multiplies by it
  const float magnitude = r.magnitude / own_magnitude, mix = r.yarn ? 1.0F : 0.0F;
  ggml_tensor* const factors = b.parts.weights->plain(r.freq_factors);
  if (r.sections) {
    const auto& [time, height, width] = r.sections->pairs;
    int sections[GGML_MROPE_SECTIONS] = {time, height, width, 0};
    return ggml_rope_multi(b.context, x, b.inputs.positions, factors, r.dims, sections,
                           r.sections->interleaved ? GGML_ROPE_TYPE_IMROPE : GGML_ROPE_TYPE_MROPE,
                           yarn.original_context, r.base, r.freq_scale, mix, magnitude, yarn.beta_fast, yarn.beta_slow);
  }
  return ggml_rope_ext(b.context, x, b.inputs.positions, factors, r.dims, mode, yarn.original_context, r.base,
                       r.freq_scale, mix, magnitude, yarn.beta_fast, yarn.beta_slow);
}

/// ggml's operators. REQUIRES: the store's format is f16.
EnteredRows enter_plainly(GraphBuilder& b, const LayerRows& rows, const model::AttentionSpec& spec, ggml_tensor* slots,
                          ggml_tensor* keys, ggml_tensor* values) {
  if (rows.k) {
    ggml_tensor* k = ggml_reshape_2d(b.context, turned(b, rows.k, spec), rows.k->ne[0], rows.k->ne[1]);
    keys = ggml_set_rows(b.context, keys, k, slots);
    values = ggml_set_rows(b.context, values, rows.v, slots);
  }
  return {turned(b, rows.q, spec), keys, values};
}

}  // namespace

EnteredRows enter_rows(GraphBuilder& b, const LayerRows& rows, const model::AttentionSpec& spec,
                       const LayerPlace& place) {
  const KvStore& store = *b.parts.store;
  const auto enter = b.parts.attention->own_nodes() ? enter_in_one_node : enter_plainly;
  const EnteredRows entered =
      enter(b, rows, spec, b.inputs.slots[place.group], store.k(place.layer), store.v(place.layer));
  // Without keys nothing has to come before anything: the layer that wrote them is in the graph.
  if (rows.k) {
    for (ggml_tensor* t : {entered.q, entered.k, entered.v}) ggml_build_forward_expand(b.graph, t);
  }
  return entered;
}

}  // namespace coppice::executor
