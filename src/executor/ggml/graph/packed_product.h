// packed_product: matrices in our own packed form times rows, as one node of the graph, together with the norm before
// it and what is done with the product: workers wait for each other once.
#pragma once

#include <span>
#include <vector>

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

using PackedMatrices = std::vector<const matmul::QuantMatrix*>;

/// The matrices, if one node can multiply them: all are packed, in whatever types. Otherwise none.
PackedMatrices packed_together(const Weights& weights, std::span<const model::TensorId> ids);

/// The matrix times rows, plus `plus` if there is one: [n_out, n_rows].
ggml_tensor* packed_product(GraphBuilder& b, const matmul::QuantMatrix* matrix, Rows rows, ggml_tensor* plus);
/// Up to four matrices times the same rows.
std::vector<ggml_tensor*> packed_products(GraphBuilder& b, const PackedMatrices& matrices, Rows rows);
/// silu(first * rows) * (second * rows) of two matrices: [n_out, n_rows].
ggml_tensor* packed_gated_product(GraphBuilder& b, const PackedMatrices& matrices, Rows rows);

}  // namespace coppice::executor
