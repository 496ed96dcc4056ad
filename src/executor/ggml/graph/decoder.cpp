// A layer of another kind: first its data in model/model.h and its reading in model/decoder_reader.cpp
// (experts_reader.cpp, layer_pattern.cpp, recurrent_reader.cpp). A new matrix is named in its part's linears(); norms
// and biases are not. Then here, and for
//  - a norm: norm.cpp; before a packed matrix packed_product.cpp and matmul/quant_rows-inl.h (test a quantised file,
//    too); behind a part residual.cpp; around experts feed_forward.cpp; of q, k and v attention_mixer.cpp;
//  - a rotation: enter_rows.cpp and attention/cpu/new_rows.*;
//  - a gate: gated_product.cpp and, for packed ones, matmul/quant_rows-inl.h; the attention's output gate:
//    attention_mixer.cpp;
//  - experts: which ones: expert_choice.cpp; their work: experts.cpp, packed_experts.cpp; the feed-forward beside them:
//    feed_forward.cpp;
//  - a recurrent mixer: its RecurrentKind; its matrices in ModelSpec::matrices(); what it keeps in
//    executor/base/state_layout.cpp; built in recurrent_mixer.cpp from mix_layer(), its kernels in src/recurrent
//    (docs/decisions.md, "Recurrent mixers").
// What is added to the residual goes through add_product(), which fuses the sum where nothing lies between.
#include "executor/ggml/graph/decoder.h"

#include "executor/ggml/graph/attention_mixer.h"
#include "executor/ggml/graph/feed_forward.h"
#include "executor/ggml/graph/norm.h"
#include "executor/ggml/graph/product.h"
#include "executor/ggml/graph/recurrent_mixer.h"
#include "executor/ggml/graph/residual.h"
#include "executor/ggml/graph/token_inputs.h"

namespace coppice::executor {

namespace {

ggml_tensor* scaled(GraphBuilder& b, ggml_tensor* x, float scale) {
  return scale == 1 ? x : ggml_scale(b.context, x, scale);
}

/// n rows of x from the i-th on.
ggml_tensor* rows_of(GraphBuilder& b, ggml_tensor* x, int i, std::int64_t n) {
  return n == x->ne[1] ? x : ggml_view_2d(b.context, x, x->ne[0], n, x->nb[1], static_cast<std::size_t>(i) * x->nb[1]);
}

/// What a mixer makes of its rows, and the matrix that takes it.
struct Mixed {
  ggml_tensor* x;
  const model::LinearSpec* out;
};

Mixed mix_layer(GraphBuilder& b, const model::LayerSpec& layer, Rows rows, std::size_t i) {
  if (const auto* mixer = std::get_if<model::ShortConvSpec>(&layer.recurrent))
    return {mix(b, *mixer, rows, i), &mixer->out};
  if (const auto* mixer = std::get_if<model::LinearAttentionSpec>(&layer.recurrent)) {
    return {mix(b, *mixer, rows, i), &mixer->out};
  }
  return {mix(b, layer.mixer, rows, b.parts.places[i]), &layer.mixer.o};
}

/// The rows' logits.
ggml_tensor* head(GraphBuilder& b, ggml_tensor* x) {
  const model::ModelSpec& spec = *b.parts.spec;
  ggml_tensor* logits = scaled(b, product(b, {x, spec.output_norm}, spec.output), spec.logit_scale);
  const float cap = spec.logit_softcap;
  return cap == 0 ? logits : scaled(b, ggml_tanh(b.context, scaled(b, logits, 1 / cap)), cap);
}

/// x: the last layer's rows, as inputs.output_rows has them.
DecoderOutputs outputs(GraphBuilder& b, ggml_tensor* x) {
  const int n_logits = b.inputs.n_logits;
  const std::int64_t n_hidden = x->ne[1] - n_logits;
  DecoderOutputs outputs;
  if (n_logits > 0) outputs.logits = head(b, rows_of(b, x, 0, n_logits));
  if (n_hidden > 0) outputs.hidden_states = rms_norm(b, rows_of(b, x, n_logits, n_hidden), b.parts.spec->output_norm);
  return outputs;
}

/// The i-th n_embd values of each row that is no token.
ggml_tensor* plane(GraphBuilder& b, std::size_t i) {
  ggml_tensor* all = b.inputs.embeddings;
  const int n_embd = b.parts.spec->n_embd;
  if (all->ne[0] == n_embd) return all;
  return ggml_cont(b.context, ggml_view_2d(b.context, all, n_embd, all->ne[1], all->nb[1], i * n_embd * sizeof(float)));
}

/// What the first layer gets. Embeddings are neither scaled nor normalised: whoever made them has done it.
ggml_tensor* embed(GraphBuilder& b) {
  const model::ModelSpec& spec = *b.parts.spec;
  ggml_tensor* x = ggml_get_rows(b.context, b.parts.weights->plain(spec.embedding), b.inputs.tokens);
  x = scaled(b, x, spec.embedding_scale);
  if (spec.embedding_norm != model::kNoTensor) x = rms_norm(b, x, spec.embedding_norm);
  if (!b.inputs.embeddings) return x;
  return ggml_get_rows(b.context, ggml_concat(b.context, x, plane(b, 0), 1), b.inputs.sources);
}

}  // namespace

DecoderOutputs build_decoder(GraphBuilder& b) {
  const model::ModelSpec& spec = *b.parts.spec;
  ggml_tensor* x = embed(b);
  ggml_tensor* inputs = token_inputs(b, x);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const model::LayerSpec& layer = spec.layers[i];
    const Mixed mixed_rows = mix_layer(b, layer, {x, layer.mixer_norms.before}, i);
    ggml_tensor* mixed = mixed_rows.x;
    const bool last = i + 1 == spec.layers.size();
    if (last) {  // the keys and values of all rows are written: only outputs go on
      if (!b.inputs.output_rows) return {};
      mixed = ggml_get_rows(b.context, mixed, b.inputs.output_rows);
      x = ggml_get_rows(b.context, x, b.inputs.output_rows);
    }
    x = add_product(b, {mixed}, *mixed_rows.out, {x, layer.mixer_norms.behind});
    x = feed_forward(b, layer, x);
    if (inputs) x = add_token_input(b, inputs, i, last ? b.inputs.output_rows : nullptr, x);
    if (b.inputs.embeddings && std::cmp_less(i, spec.n_planes)) x = ggml_add(b.context, x, plane(b, i + 1));
    if (layer.scale != model::kNoTensor) x = ggml_mul(b.context, x, b.parts.weights->plain(layer.scale));
  }
  return outputs(b, x);
}

}  // namespace coppice::executor
