#include "executor/ggml/graph/enter_rows.h"

#include <iterator>

#include "attention/cpu/new_rows.h"
#include "executor/ggml/graph/attention.h"

namespace coppice::executor {

namespace {

/// Source: positions. userdata: the Rope.
void run_turns(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& rope = *static_cast<const attention::Rope*>(userdata);
  const auto* positions = static_cast<const std::int32_t*>(dst->src[0]->data);
  for (std::int64_t i = worker; i < dst->ne[1]; i += n_workers) {
    rope.turn(positions[i], static_cast<float*>(dst->data) + i * dst->ne[0]);
  }
}

/// Sources: q (which is dst), k, v, turns, slots, pool of keys, pool of values. userdata: the store's config.
void run_enter(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& config = *static_cast<const KvStoreConfig*>(userdata);
  const auto data = [&](int i) { return dst->src[i]->data; };
  attention::enter_rows({.format = config.format,
                         .n_head = static_cast<int>(dst->ne[0]) / config.head_dim,
                         .n_kv_head = config.n_kv_head,
                         .head_dim = config.head_dim,
                         .n = static_cast<int>(dst->ne[1]),
                         .queries = static_cast<float*>(dst->data),
                         .keys = static_cast<float*>(data(1)),
                         .values = static_cast<const float*>(data(2)),
                         .turns = static_cast<const float*>(data(3)),
                         .turned_dims = static_cast<int>(dst->src[3]->ne[0]) / 2,
                         .slots = static_cast<const kv::Slot*>(data(4)),
                         .key_pool = static_cast<std::byte*>(data(5)),
                         .value_pool = static_cast<std::byte*>(data(6)),
                         .row_bytes = dst->src[5]->nb[1]},
                        worker, n_workers);
}

/// Sines and cosines of the rows' positions, the same for all layers: [2 * rope dims, n_rows].
ggml_tensor* turns(GraphBuilder& b) {
  if (!b.turns) {
    ggml_tensor* positions = b.inputs.positions;
    b.turns =
        ggml_custom_4d(b.context, GGML_TYPE_F32, static_cast<std::int64_t>(b.parts.rope->turn_size()), positions->ne[0],
                       1, 1, &positions, 1, run_turns, GGML_N_TASKS_MAX, const_cast<attention::Rope*>(b.parts.rope));
  }
  return b.turns;
}

/// Everything in one node of our own, in every KV format.
EnteredRows enter_in_one_node(GraphBuilder& b, const LayerRows& rows, ggml_tensor* slots, ggml_tensor* keys,
                              ggml_tensor* values) {
  const KvStoreConfig& config = b.parts.store->config();
  ggml_tensor* others[] = {rows.k, rows.v, turns(b), slots, keys, values};
  ggml_tensor* q = ggml_custom_inplace(b.context, rows.q, others, std::size(others), run_enter, GGML_N_TASKS_MAX,
                                       const_cast<KvStoreConfig*>(&config));
  return {ggml_reshape_3d(b.context, q, config.head_dim, q->ne[0] / config.head_dim, q->ne[1]), keys, values};
}

/// x: [n_heads * head_dim, n_rows]. Returns [head_dim, n_heads, n_rows].
ggml_tensor* rope(GraphBuilder& b, ggml_tensor* x) {
  const model::RopeSpec& r = b.parts.spec->rope;
  const int head_dim = b.parts.spec->head_dim;
  x = ggml_reshape_3d(b.context, x, head_dim, x->ne[0] / head_dim, x->ne[1]);
  return ggml_rope_ext(b.context, x, b.inputs.positions, b.parts.weights->plain(r.freq_factors), r.dims,
                       GGML_ROPE_TYPE_NORMAL, 0, r.base, r.freq_scale, 0.0F, 1.0F, 32.0F, 1.0F);
}

/// ggml's operators. REQUIRES: the store's format is f16.
EnteredRows enter_plainly(GraphBuilder& b, const LayerRows& rows, ggml_tensor* slots, ggml_tensor* keys,
                          ggml_tensor* values) {
  ggml_tensor* k = ggml_reshape_2d(b.context, rope(b, rows.k), rows.k->ne[0], rows.k->ne[1]);
  return {rope(b, rows.q), ggml_set_rows(b.context, keys, k, slots), ggml_set_rows(b.context, values, rows.v, slots)};
}

}  // namespace

EnteredRows enter_rows(GraphBuilder& b, const LayerRows& rows, const LayerPlace& place) {
  const auto enter = b.parts.attention->own_nodes() ? enter_in_one_node : enter_plainly;
  const EnteredRows entered =
      enter(b, rows, b.inputs.slots[place.group], b.parts.store->k(place.slot), b.parts.store->v(place.slot));
  for (ggml_tensor* t : {entered.q, entered.k, entered.v}) ggml_build_forward_expand(b.graph, t);
  return entered;
}

}  // namespace coppice::executor
