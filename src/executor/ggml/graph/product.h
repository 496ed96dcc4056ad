// Products of matrices and rows. Packed matrices are multiplied by our own kernel (packed_product.h), others by ggml.
#pragma once

#include <initializer_list>
#include <vector>

#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

/// The matrix times rows, plus its bias, plus `plus` (the residual) if there is one: [n_out, n_rows].
ggml_tensor* product(GraphBuilder& b, Rows rows, const model::LinearSpec& linear, ggml_tensor* plus = nullptr);

/// Several matrices times the same rows, one node where that is possible.
std::vector<ggml_tensor*> products(GraphBuilder& b, Rows rows, std::initializer_list<const model::LinearSpec*> linears);

}  // namespace coppice::executor
