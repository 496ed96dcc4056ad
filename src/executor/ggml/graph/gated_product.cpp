#include "executor/ggml/graph/gated_product.h"

#include <array>

#include "executor/ggml/graph/packed_product.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

ggml_tensor* gated_product(GraphBuilder& b, Rows rows, const model::LinearSpec& gate, const model::LinearSpec& up) {
  if (gate.bias == model::kNoTensor && up.bias == model::kNoTensor) {
    const std::array ids = {gate.weight, up.weight};
    const PackedMatrices together = packed_together(*b.parts.weights, ids);
    if (!together.empty()) return packed_gated_product(b, together, rows);
  }
  const std::vector<ggml_tensor*> both = products(b, rows, {&gate, &up});
  return ggml_swiglu_split(b.context, both[0], both[1]);
}

}  // namespace coppice::executor
