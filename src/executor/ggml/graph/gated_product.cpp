#include "executor/ggml/graph/gated_product.h"

#include <array>

#include "executor/ggml/graph/packed_product.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

ggml_tensor* gated_product(GraphBuilder& b, Rows rows, const model::GatedSpec& spec) {
  const bool silu = spec.activation == model::Activation::kSilu;
  if (silu && spec.gate.bias == model::kNoTensor && spec.up.bias == model::kNoTensor) {
    const std::array ids = {spec.gate.weight, spec.up.weight};
    const PackedMatrices together = packed_together(*b.parts.weights, ids);
    if (!together.empty()) return packed_gated_product(b, together, rows);
  }
  const std::vector<ggml_tensor*> both = products(b, rows, {&spec.gate, &spec.up});
  return gate_by(b, spec.activation, both[0], both[1]);
}

ggml_tensor* gate_by(GraphBuilder& b, model::Activation activation, ggml_tensor* gate, ggml_tensor* up) {
  switch (activation) {
    case model::Activation::kSilu:
      return ggml_swiglu_split(b.context, gate, up);
    case model::Activation::kGelu:
      return ggml_geglu_split(b.context, gate, up);
    case model::Activation::kClamped:
      break;
  }
  return ggml_swiglu_oai(b.context, gate, up, 1.702F, 7.0F);
}

}  // namespace coppice::executor
