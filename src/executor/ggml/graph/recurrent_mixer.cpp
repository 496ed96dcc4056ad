#include "executor/ggml/graph/recurrent_mixer.h"

#include <algorithm>
#include <vector>

#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"
#include "executor/ggml/graph/state_step.h"
#include "recurrent/convolution.h"
#include "recurrent/linear_attention.h"

namespace coppice::executor {

namespace {

const float* data_of(const ggml_tensor* t) {
  return t ? static_cast<const float*>(t->data) : nullptr;
}

/// What a node that reads and writes states points to.
struct StateNode {
  StateStep* step;
  const KvStore* store;
  const StateLayout::Layer* layer;

  /// nullptr: zeros.
  const float* before(const StateStep::Sequence& s, const StateLayout::PageOffset& at) const {
    return s.in.empty() ? nullptr : store->state(s.in, at);
  }
  float* behind(const StateStep::Sequence& s, const StateLayout::PageOffset& at) const {
    return store->state(s.out, at);
  }
};

StateNode state_node(GraphBuilder& b, std::size_t layer) {
  return {b.parts.states, b.parts.store, &b.parts.store->layout().state.layers[layer]};
}

/// Padding rows of a result get zeros: what lay in their memory may be no numbers.
void clear_padding(ggml_tensor* dst, int n_rows) {
  auto* rows = static_cast<float*>(dst->data);
  std::fill(rows + n_rows * dst->ne[0], rows + ggml_nelements(dst), 0.0F);
}

struct ConvNode {
  StateNode state;
  recurrent::ConvForm form;
  int n_taps;
  const float *weights, *bias;
};

/// Source: x. A worker takes a range of channels, and of these all rows: so it alone reads and writes their part of a
/// state.
void run_conv(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  constexpr int kVector = 16;
  const auto& node = *static_cast<const ConvNode*>(userdata);
  const ggml_tensor* x = dst->src[0];
  const auto n_channels = static_cast<int>(dst->ne[0]);
  const int units = n_channels / kVector;
  const int begin = units * worker / n_workers * kVector, end = units * (worker + 1) / n_workers * kVector;
  for (const StateStep::Sequence& s : node.state.step->sequences()) {
    const StateLayout::PageOffset& at = node.state.layer->conv;
    recurrent::convolve({.form = node.form,
                         .n_taps = node.n_taps,
                         .n_channels = n_channels,
                         .n = s.n_rows,
                         .x = data_of(x) + s.first_row * x->ne[0],
                         .weights = node.weights,
                         .bias = node.bias,
                         .before = node.state.before(s, at),
                         .after = node.state.behind(s, at),
                         .y = static_cast<float*>(dst->data) + s.first_row * dst->ne[0]},
                        begin, end);
  }
  if (worker == 0) clear_padding(dst, node.state.step->n_rows());
}

/// The rows' convolution: [n_channels, n_rows]. REQUIRES: rows of x lie one behind the other.
ggml_tensor* convolution(GraphBuilder& b, const model::ConvSpec& spec, recurrent::ConvForm form, ggml_tensor* x,
                         std::size_t layer) {
  ConvNode& node =
      b.keep<ConvNode>(ConvNode{state_node(b, layer), form, spec.n_taps, data_of(b.parts.weights->plain(spec.weights)),
                                data_of(b.parts.weights->plain(spec.bias))});
  return ggml_custom_4d(b.context, GGML_TYPE_F32, spec.n_channels, x->ne[1], 1, 1, &x, 1, run_conv, GGML_N_TASKS_MAX,
                        &node);
}

struct LinearNode {
  StateNode state;
  recurrent::LinearShape shape;
  recurrent::LinearRows weights;  ///< without the rows
  matmul::Claims* claims = nullptr;
};

/// Sources: q, k, v; z; beta, or what stands for both gates or for the only one; alpha where that is another tensor.
/// Workers claim heads of sequences.
void run_linear(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  auto& node = *static_cast<LinearNode*>(userdata);
  const std::span<const StateStep::Sequence> sequences = node.state.step->sequences();
  recurrent::LinearRows rows = node.weights;
  rows.mixed = data_of(dst->src[0]);
  rows.z = data_of(dst->src[1]);
  rows.z_stride = static_cast<std::ptrdiff_t>(dst->src[1]->nb[1] / sizeof(float));
  rows.beta = data_of(dst->src[2]);
  rows.alpha = rows.gates_together ? rows.beta + node.shape.n_heads / node.shape.n_key_heads
               : dst->src[3]       ? data_of(dst->src[3])
                                   : rows.beta;
  rows.gate_stride = static_cast<std::ptrdiff_t>(dst->src[2]->nb[1] / sizeof(float));
  rows.y = static_cast<float*>(dst->data);
  const int n = static_cast<int>(sequences.size()) * node.shape.n_heads;
  matmul::Claims::Turn turn(*node.claims, n, /*n_shares=*/1, {worker, n_workers});
  for (int i; (i = turn.next()) < n;) {
    const StateStep::Sequence& s = sequences[static_cast<std::size_t>(i / node.shape.n_heads)];
    const int head = i % node.shape.n_heads;
    const StateLayout::PageOffset& at = node.state.layer->heads[static_cast<std::size_t>(head)];
    recurrent::attend_linearly(node.shape, rows,
                               {head, s.first_row, s.n_rows, node.state.before(s, at), node.state.behind(s, at)},
                               node.state.step->scratch(worker));
  }
  if (worker == 0) clear_padding(dst, node.state.step->n_rows());
}

/// A custom node reads whole rows that lie one behind the other.
ggml_tensor* whole(GraphBuilder& b, ggml_tensor* x) {
  return ggml_is_contiguous(x) ? x : ggml_cont(b.context, x);
}

LinearNode& linear_node(GraphBuilder& b, const model::LinearAttentionSpec& spec, std::size_t layer) {
  const auto weights = [&b](model::TensorId id) { return data_of(b.parts.weights->plain(id)); };
  LinearNode& node = b.keep<LinearNode>();
  node.claims = b.parts.claims.get();
  const bool delta = spec.rule == model::StateRule::kDelta;
  node.state = state_node(b, layer);
  node.shape = {.delta = delta,
                .n_heads = spec.n_heads,
                .n_key_heads = spec.n_key_heads,
                .key_dim = spec.key_dim,
                .value_dim = spec.value_dim,
                .in_turns = spec.in_turns,
                .norm_eps = b.parts.spec->norm_eps};
  node.weights = {.gates_together = delta && spec.alpha.weight == model::kNoTensor,
                  .a = weights(spec.a),
                  .dt_bias = weights(spec.dt_bias),
                  .skip = weights(spec.skip),
                  .norm = delta ? weights(spec.norm) : nullptr};
  b.parts.states->reserve(recurrent::scratch_size(node.shape));
  return node;
}

}  // namespace

ggml_tensor* mix(GraphBuilder& b, const model::ShortConvSpec& spec, Rows rows, std::size_t layer) {
  ggml_tensor* y = convolution(b, spec.conv, recurrent::ConvForm::kGated, whole(b, product(b, rows, spec.in)), layer);
  ggml_build_forward_expand(b.graph, y);
  return y;
}

ggml_tensor* mix(GraphBuilder& b, const model::LinearAttentionSpec& spec, Rows rows, std::size_t layer) {
  const bool both_gates = spec.alpha.weight != model::kNoTensor && spec.beta.weight != model::kNoTensor;
  const model::LinearSpec& gates = spec.beta.weight == model::kNoTensor ? spec.alpha : spec.beta;
  std::vector<ggml_tensor*> sources = both_gates ? products(b, rows, {&spec.qkv, &spec.z, &gates, &spec.alpha})
                                                 : products(b, rows, {&spec.qkv, &spec.z, &gates});
  const std::int64_t n_rows = sources[0]->ne[1];
  sources[0] = convolution(b, spec.conv, recurrent::ConvForm::kSilu, whole(b, sources[0]), layer);
  LinearNode& node = linear_node(b, spec, layer);
  const std::int64_t width = std::int64_t{spec.n_heads} * spec.value_dim;
  ggml_tensor* y = ggml_custom_4d(b.context, GGML_TYPE_F32, width, n_rows, 1, 1, sources.data(),
                                  static_cast<int>(sources.size()), run_linear, GGML_N_TASKS_MAX, &node);
  ggml_build_forward_expand(b.graph, y);
  if (spec.rule == model::StateRule::kDelta) return y;
  y = ggml_reshape_3d(b.context, y, width / spec.n_key_heads, spec.n_key_heads, n_rows);
  return ggml_reshape_2d(b.context, rms_norm(b, y, spec.norm), width, n_rows);
}

}  // namespace coppice::executor
