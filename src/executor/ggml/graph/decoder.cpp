#include "executor/ggml/graph/decoder.h"

#include "executor/ggml/graph/attention_mixer.h"
#include "executor/ggml/graph/gated_feed_forward.h"
#include "executor/ggml/graph/product.h"

namespace coppice::executor {

ggml_tensor* build_decoder(GraphBuilder& b) {
  const model::ModelSpec& spec = *b.parts.spec;
  ggml_tensor* x = ggml_get_rows(b.context, b.parts.weights->plain(spec.embedding), b.inputs.tokens);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const model::LayerSpec& layer = spec.layers[i];
    ggml_tensor* mixed = mix(b, layer.mixer, {x, layer.mixer_norm}, b.parts.places[i]);
    if (i + 1 == spec.layers.size()) {  // the keys and values of all rows are written: only outputs go on
      if (!b.inputs.output_rows) return nullptr;
      mixed = ggml_get_rows(b.context, mixed, b.inputs.output_rows);
      x = ggml_get_rows(b.context, x, b.inputs.output_rows);
    }
    x = product(b, {mixed}, layer.mixer.o, x);
    x = feed_forward(b, layer.feed_forward, {x, layer.feed_forward_norm}, x);
  }
  return product(b, {x, spec.output_norm}, {.weight = spec.output});
}

}  // namespace coppice::executor
