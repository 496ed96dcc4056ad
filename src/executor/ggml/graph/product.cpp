#include "executor/ggml/graph/product.h"

#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/packed_product.h"

namespace coppice::executor {

namespace {

ggml_tensor* plus_bias(GraphBuilder& b, ggml_tensor* x, const model::LinearSpec& linear) {
  return linear.bias == model::kNoTensor ? x : ggml_add(b.context, x, b.parts.weights->plain(linear.bias));
}

}  // namespace

ggml_tensor* product(GraphBuilder& b, Rows rows, const model::LinearSpec& linear, ggml_tensor* plus) {
  const Weights::Matrix& matrix = b.parts.weights->matrix(linear.weight);
  if (matrix.packed) return plus_bias(b, packed_product(b, matrix.packed.get(), rows, plus), linear);
  ggml_tensor* y = ggml_mul_mat(b.context, matrix.tensor, normalised(b, rows));
  return plus_bias(b, plus ? ggml_add(b.context, y, plus) : y, linear);
}

std::vector<ggml_tensor*> products(GraphBuilder& b, Rows rows,
                                   std::initializer_list<const model::LinearSpec*> linears) {
  std::vector<model::TensorId> ids;
  for (const model::LinearSpec* l : linears) ids.push_back(l->weight);
  std::vector<ggml_tensor*> results;
  if (const PackedMatrices together = packed_together(*b.parts.weights, ids); !together.empty()) {
    results = packed_products(b, together, rows);
    for (std::size_t i = 0; i < results.size(); ++i) results[i] = plus_bias(b, results[i], *linears.begin()[i]);
    return results;
  }
  rows = {normalised(b, rows)};
  for (const model::LinearSpec* l : linears) results.push_back(product(b, rows, *l));
  return results;
}

}  // namespace coppice::executor
