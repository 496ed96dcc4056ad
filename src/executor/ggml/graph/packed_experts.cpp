#include "executor/ggml/graph/packed_experts.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace coppice::executor {

namespace {

using matmul::QuantMatrix;

/// Pairs of a row and one of its experts, sorted by expert, in an i32 tensor.
struct SortedPairs {
  std::int32_t* rows;       ///< [n_pairs] of x
  std::int32_t* positions;  ///< [n_pairs] of pair row * n_used + k, among the sorted ones
  std::int32_t* begin;      ///< [n + 1] expert i has the sorted pairs [begin[i], begin[i + 1])

  SortedPairs(ggml_tensor* t, std::int64_t n_pairs)
      : rows(static_cast<std::int32_t*>(t->data)), positions(rows + n_pairs), begin(positions + n_pairs) {}
};

struct SortNode {
  int n;             ///< experts
  bool row_of_pair;  ///< x has a row for each pair
};

/// One worker sorts: it takes less than to wait for another one. Source: ids [n_used, n_rows].
void run_sort(ggml_tensor* dst, int worker, int, void* userdata) {
  if (worker != 0) return;
  const SortNode& node = *static_cast<const SortNode*>(userdata);
  const ggml_tensor* ids = dst->src[0];
  const std::int64_t n_used = ids->ne[0], n_rows = ids->ne[1];
  const SortedPairs pairs(dst, n_used * n_rows);
  const auto expert = [&](std::int64_t row, std::int64_t k) {
    const auto* at = static_cast<const char*>(ids->data) + row * static_cast<std::int64_t>(ids->nb[1]);
    return reinterpret_cast<const std::int32_t*>(at)[k];
  };
  const auto each = [&](auto&& visit) {
    for (std::int64_t row = 0; row < n_rows; ++row) {
      for (std::int64_t k = 0; k < n_used; ++k) visit(row, k, expert(row, k));
    }
  };
  std::fill_n(pairs.begin, node.n + 1, 0);
  each([&](std::int64_t, std::int64_t, std::int32_t e) { ++pairs.begin[e + 1]; });
  for (int e = 0; e < node.n; ++e) pairs.begin[e + 1] += pairs.begin[e];
  each([&](std::int64_t row, std::int64_t k, std::int32_t e) {
    const std::int32_t to = pairs.begin[e]++;
    pairs.rows[to] = static_cast<std::int32_t>(node.row_of_pair ? row * n_used + k : row);
    pairs.positions[row * n_used + k] = to;
  });
  for (int e = node.n; e > 0; --e) pairs.begin[e] = pairs.begin[e - 1];  // each has moved to the next one's
  pairs.begin[0] = 0;
}

struct ProductNode {
  matmul::Claims* claims;
  const QuantMatrix* matrix;
  const QuantMatrix* up = nullptr;  ///< nullptr: nothing is gated
  matmul::Gate gate = {};
  bool alike = false;
  int bias = 0, up_bias = 0;  ///< sources; 0: there is none
};

/// Sources: x; sorted pairs; biases. Gated, the products of `up` lie behind the result.
void run_product(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  auto& node = *static_cast<ProductNode*>(userdata);
  const auto source = [&](int i) { return static_cast<const float*>(dst->src[i]->data); };
  const auto bias = [&](int i) { return i > 0 ? source(i) : nullptr; };
  const std::int64_t n_pairs = ggml_nelements(dst) / node.matrix->n_out() / (node.up ? 2 : 1);
  const SortedPairs pairs(dst->src[1], n_pairs);
  QuantMatrix::Rows rows{.x = source(0), .n = static_cast<int>(n_pairs), .begin = pairs.begin, .alike = node.alike};
  if (node.up) rows.order = pairs.rows;
  auto* y = static_cast<float*>(dst->data);
  const QuantMatrix::Product first{.matrix = node.matrix, .y = y, .bias = bias(node.bias)};
  if (!node.up) return QuantMatrix::multiply({&first, 1}, rows, *node.claims, {worker, n_workers});
  const QuantMatrix::Product up{.matrix = node.up, .y = y + n_pairs * node.matrix->n_out(), .bias = bias(node.up_bias)};
  QuantMatrix::multiply_gated(node.gate, first, up, rows, *node.claims, {worker, n_workers});
}

matmul::Gate gate_of(model::Activation activation) {
  switch (activation) {
    case model::Activation::kSilu:
      return matmul::Gate::kSilu;
    case model::Activation::kGelu:
      return matmul::Gate::kGelu;
    case model::Activation::kClamped:
      break;
  }
  return matmul::Gate::kClamped;
}

/// The product as a node: its matrices' outputs for each pair, [n_out, pairs]; gated, twice as many pairs.
ggml_tensor* add_product_node(GraphBuilder& b, ProductNode& node, ggml_tensor* x, ggml_tensor* pairs,
                              std::int64_t n_columns, model::TensorId bias, model::TensorId up_bias) {
  std::array<ggml_tensor*, 4> sources = {x, pairs};
  int n = 2;
  const auto add = [&](model::TensorId id) {
    if (id == model::kNoTensor) return 0;
    sources[static_cast<std::size_t>(n)] = b.parts.weights->plain(id);
    return n++;
  };
  node.bias = add(bias), node.up_bias = add(up_bias);
  return ggml_custom_4d(b.context, GGML_TYPE_F32, node.matrix->n_out(), n_columns, 1, 1, sources.data(), n, run_product,
                        GGML_N_TASKS_MAX, &node);
}

}  // namespace

bool are_packed(const Weights& weights, const model::ExpertsSpec& spec) {
  return weights.matrix(spec.down.weight).packed != nullptr;
}

PackedExperts packed_experts(GraphBuilder& b, const model::ExpertsSpec& spec, ggml_tensor* x,
                             const ExpertChoice& choice) {
  const auto matrix = [&](const model::LinearSpec& l) { return b.parts.weights->matrix(l.weight).packed.get(); };
  const std::int64_t n_pairs = choice.ids->ne[0] * choice.ids->ne[1];
  SortNode& sort = b.keep<SortNode>(spec.n, ggml_nelements(x) / x->ne[0] == n_pairs);
  ggml_tensor* ids = choice.ids;
  ggml_tensor* pairs = ggml_custom_4d(b.context, GGML_TYPE_I32, 2 * n_pairs + spec.n + 1, 1, 1, 1, &ids, 1, run_sort,
                                      /*n_tasks=*/1, &sort);
  ProductNode& gates = b.keep<ProductNode>(b.parts.claims.get(), matrix(spec.gate), matrix(spec.up),
                                           gate_of(spec.activation), b.inputs.alike);
  ggml_tensor* both = add_product_node(b, gates, x, pairs, 2 * n_pairs, spec.gate.bias, spec.up.bias);
  ggml_tensor* gated = ggml_view_2d(b.context, both, both->ne[0], n_pairs, both->nb[1], 0);
  ProductNode& down =
      b.keep<ProductNode>(b.parts.claims.get(), matrix(spec.down), nullptr, matmul::Gate{}, b.inputs.alike);
  ggml_tensor* parts = add_product_node(b, down, gated, pairs, n_pairs, spec.down.bias, model::kNoTensor);
  return {parts, ggml_view_1d(b.context, pairs, n_pairs, static_cast<std::size_t>(n_pairs) * sizeof(std::int32_t))};
}

}  // namespace coppice::executor
