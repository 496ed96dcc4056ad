#include "executor/ggml/graph/attention_mixer.h"

#include "executor/ggml/graph/attention.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

ggml_tensor* mix(GraphBuilder& b, const model::AttentionSpec& spec, Rows rows, const LayerPlace& place) {
  const std::vector<ggml_tensor*> qkv = products(b, rows, {&spec.q, &spec.k, &spec.v});
  return b.parts.attention->attend(b, enter_rows(b, {qkv[0], qkv[1], qkv[2]}, place), place.group);
}

}  // namespace coppice::executor
