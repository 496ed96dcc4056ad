#include "executor/ggml/graph/packed_product.h"

#include <algorithm>
#include <array>

#include "check/assert.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kMostTogether = 4;

/// What a node points to.
struct PackedNode {
  matmul::Claims* claims;
  PackedMatrices matrices;
  float norm_eps;
  bool alike;
};

/// What becomes of products.
enum class Then : std::uint8_t { kNothing, kPlus, kGated };

/// The first matrix's product, then the next one's. Sources: x; the norm's weights, if Norm; what is added, if kPlus.
template <bool Norm, Then What>
void run_packed(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  auto& node = *static_cast<PackedNode*>(userdata);
  const auto source = [&](int i) { return static_cast<const float*>(dst->src[i]->data); };
  const auto n_rows = static_cast<int>(dst->src[0]->ne[1]);
  auto* y = static_cast<float*>(dst->data);
  const float* plus = What == Then::kPlus ? source(Norm ? 2 : 1) : nullptr;
  std::array<matmul::QuantMatrix::Product, kMostTogether> products{};
  for (std::size_t i = 0; i < node.matrices.size(); ++i) {
    products[i] = {node.matrices[i], y, plus};
    y += std::ptrdiff_t{node.matrices[i]->n_out()} * n_rows;
  }
  const matmul::QuantMatrix::Rows rows{source(0), n_rows,    Norm ? source(1) : nullptr, node.norm_eps, nullptr,
                                       nullptr,   node.alike};
  if (What == Then::kGated) {
    matmul::QuantMatrix::multiply_gated(matmul::Gate::kSilu, products[0], products[1], rows, *node.claims,
                                        {worker, n_workers});
  } else {
    matmul::QuantMatrix::multiply(std::span(products).first(node.matrices.size()), rows, *node.claims,
                                  {worker, n_workers});
  }
}

template <Then What>
ggml_custom_op_t runner(bool norm) {
  return norm ? run_packed<true, What> : run_packed<false, What>;
}

ggml_tensor* add_node(GraphBuilder& b, PackedMatrices matrices, std::int64_t ne0, std::int64_t ne1, Rows rows,
                      ggml_tensor* plus, bool gated) {
  COPPICE_ASSERT(matrices.size() <= kMostTogether);
  ggml_tensor* norm = b.parts.weights->plain(rows.norm);
  std::array<ggml_tensor*, 3> sources = {rows.x};
  int n = 1;
  if (norm) sources[static_cast<std::size_t>(n++)] = norm;
  if (plus) sources[static_cast<std::size_t>(n++)] = plus;
  const auto run = gated ? runner<Then::kGated>(norm) : plus ? runner<Then::kPlus>(norm) : runner<Then::kNothing>(norm);
  PackedNode& node =
      b.keep<PackedNode>(b.parts.claims.get(), std::move(matrices), b.parts.spec->norm_eps, b.inputs.alike);
  return ggml_custom_4d(b.context, GGML_TYPE_F32, ne0, ne1, 1, 1, sources.data(), n, run, GGML_N_TASKS_MAX, &node);
}

}  // namespace

PackedMatrices packed_together(const Weights& weights, std::span<const model::TensorId> ids) {
  PackedMatrices matrices;
  for (const model::TensorId id : ids) matrices.push_back(weights.matrix(id).packed.get());
  const bool all = std::ranges::all_of(matrices, [](const matmul::QuantMatrix* m) { return m != nullptr; });
  return all ? matrices : PackedMatrices{};
}

ggml_tensor* packed_product(GraphBuilder& b, const matmul::QuantMatrix* matrix, Rows rows, ggml_tensor* plus) {
  return add_node(b, {matrix}, matrix->n_out(), rows.x->ne[1], rows, plus, false);
}

std::vector<ggml_tensor*> packed_products(GraphBuilder& b, const PackedMatrices& matrices, Rows rows) {
  const std::int64_t n_rows = rows.x->ne[1];
  std::int64_t n_out = 0;
  for (const matmul::QuantMatrix* m : matrices) n_out += m->n_out();
  ggml_tensor* all = add_node(b, matrices, n_out * n_rows, 1, rows, nullptr, false);
  std::vector<ggml_tensor*> products;
  std::size_t offset = 0;
  for (const matmul::QuantMatrix* m : matrices) {
    const std::size_t row = static_cast<std::size_t>(m->n_out()) * sizeof(float);
    products.push_back(ggml_view_2d(b.context, all, m->n_out(), n_rows, row, offset));
    offset += row * static_cast<std::size_t>(n_rows);
  }
  return products;
}

ggml_tensor* packed_gated_product(GraphBuilder& b, const PackedMatrices& matrices, Rows rows) {
  // Room for both products; the first becomes the result.
  const std::int64_t n_out = matrices.front()->n_out(), n_rows = rows.x->ne[1];
  ggml_tensor* all = add_node(b, matrices, 2 * n_out * n_rows, 1, rows, nullptr, true);
  return ggml_view_2d(b.context, all, n_out, n_rows, static_cast<std::size_t>(n_out) * sizeof(float), 0);
}

}  // namespace coppice::executor
