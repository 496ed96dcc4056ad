#include "executor/ggml/graph/experts.h"

#include <algorithm>
#include <array>

#include "executor/ggml/graph/expert_choice.h"
#include "executor/ggml/graph/gated_product.h"
#include "executor/ggml/graph/packed_experts.h"

namespace coppice::executor {

namespace {

struct SumNode {
  bool weighted, sorted;
};

/// y[row] = sum of weight * part over a row's parts. Sources: parts, n_used for each row; if weighted, weights [1,
/// n_used, n_rows]; if sorted, positions [n_used * n_rows] of the parts. A worker takes a range of all values.
void run_sum(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const SumNode& node = *static_cast<const SumNode*>(userdata);
  const std::int64_t n = dst->ne[0], all = n * dst->ne[1], n_used = ggml_nelements(dst->src[0]) / all;
  const auto* parts = static_cast<const float*>(dst->src[0]->data);
  const auto* weights = node.weighted ? static_cast<const float*>(dst->src[1]->data) : nullptr;
  const auto* positions =
      node.sorted ? static_cast<const std::int32_t*>(dst->src[node.weighted ? 2 : 1]->data) : nullptr;
  const std::int64_t end = all * (worker + 1) / n_workers;
  for (std::int64_t i = all * worker / n_workers; i < end;) {
    const std::int64_t row = i / n, count = std::min(end, (row + 1) * n) - i;
    float* y = static_cast<float*>(dst->data) + i;
    for (std::int64_t k = 0; k < n_used; ++k) {
      const std::int64_t pair = row * n_used + k;
      const float* part = parts + (positions ? positions[pair] : pair) * n + i % n;
      const float weight = weights ? weights[pair] : 1.0F;
      for (std::int64_t j = 0; j < count; ++j) y[j] = (k == 0 ? 0.0F : y[j]) + weight * part[j];
    }
    i += count;
  }
}

/// positions: nullptr where a row's parts lie one behind the other.
ggml_tensor* weighted_sum(GraphBuilder& b, ggml_tensor* parts, ggml_tensor* weights, ggml_tensor* positions,
                          std::int64_t n_rows) {
  std::array<ggml_tensor*, 3> sources = {parts};
  int n = 1;
  if (weights) sources[static_cast<std::size_t>(n++)] = weights;
  if (positions) sources[static_cast<std::size_t>(n++)] = positions;
  SumNode& node = b.keep<SumNode>(weights != nullptr, positions != nullptr);
  return ggml_custom_4d(b.context, GGML_TYPE_F32, parts->ne[0], n_rows, 1, 1, sources.data(), n, run_sum,
                        GGML_N_TASKS_MAX, &node);
}

/// Each row of x times the matrices of its experts, plus their biases: [n_out, n_used, n_rows].
ggml_tensor* products(GraphBuilder& b, const model::LinearSpec& linear, ggml_tensor* x, ggml_tensor* ids) {
  ggml_tensor* y = ggml_mul_mat_id(b.context, b.parts.weights->matrix(linear.weight).tensor, x, ids);
  ggml_tensor* bias = b.parts.weights->plain(linear.bias);
  return bias ? ggml_add_id(b.context, y, bias, ids) : y;
}

}  // namespace

ggml_tensor* experts(GraphBuilder& b, const model::ExpertsSpec& spec, ggml_tensor* x, ggml_tensor* scored) {
  const ExpertChoice choice = choose_experts(b, spec, scored);
  const std::int64_t n_embd = x->ne[0], n_rows = x->ne[1];
  x = ggml_reshape_3d(b.context, x, n_embd, 1, n_rows);
  if (spec.weighs_inputs) {
    x = ggml_mul(b.context, ggml_repeat_4d(b.context, x, n_embd, spec.n_used, n_rows, 1), choice.weights);
  }
  ggml_tensor* weights = spec.weighs_inputs ? nullptr : choice.weights;
  if (are_packed(*b.parts.weights, spec)) {
    const PackedExperts packed = packed_experts(b, spec, x, choice);
    return weighted_sum(b, packed.parts, weights, packed.positions, n_rows);
  }
  ggml_tensor* gate = products(b, spec.gate, x, choice.ids);
  ggml_tensor* up = products(b, spec.up, x, choice.ids);
  ggml_tensor* parts = products(b, spec.down, gate_by(b, spec.activation, gate, up), choice.ids);
  return weighted_sum(b, parts, weights, nullptr, n_rows);
}

}  // namespace coppice::executor
