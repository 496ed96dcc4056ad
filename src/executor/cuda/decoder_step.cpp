#include "executor/cuda/decoder_step.h"

#include <algorithm>

#include "cuda/early_rows.h"

namespace coppice::executor::cuda {

namespace {

/// Launches one after the other, until one fails.
class LayerLaunches {
 public:
  LayerLaunches(const Decoder& decoder, const DecoderStep& step, const Gpu& gpu)
      : decoder_(decoder), shape_(decoder.shape), step_(step), scratch_(step.scratch), gpu_(gpu) {}

  const char* run_layers() {
    keep(launch(EmbedRows{.type = decoder_.embeddings.type,
                          .n = shape_.n_embd,
                          .n_rows = step_.n_rows,
                          .embeddings = decoder_.embeddings.weights,
                          .rows = step_.rows,
                          .drawn = step_.drawn,
                          .scale = shape_.embedding_scale,
                          .norm = decoder_.embedding_norm,
                          .eps = shape_.eps,
                          .given = step_.given,
                          .given_stride = given_stride(),
                          .residual = scratch_.residual},
                gpu_));
    Plus plus;
    int n_before = 0;
    for (const DecoderLayer& layer : decoder_.layers) {
      norm(layer.attention_norm, plus);
      attend(layer);
      norm(layer.ff_norm, {scratch_.product, layer.output_bias, layer.attention_norm_behind, output_slices(layer)});
      feed_forward(layer);
      plus = behind(layer);
      if (++n_before <= shape_.n_planes && step_.given != nullptr) add_plane(n_before);
    }
    return error_;
  }

  const char* run_outputs(const OutputRows& rows) {
    norm(decoder_.final_norm, decoder_.layers.empty() ? Plus{} : behind(decoder_.layers.back()), &rows);
    if (rows.logits == nullptr) return error_;
    multiply(decoder_.logits, rows.n, scratch_.normed, shape_.n_embd, shape_.n_vocab, rows.logits);
    if (decoder_.logit_bias != nullptr || shape_.logit_scale != 1.0F || shape_.logit_softcap > 0.0F) {
      keep(launch(FinishLogits{.n = shape_.n_vocab,
                               .n_rows = rows.n,
                               .logits = rows.logits,
                               .bias = decoder_.logit_bias,
                               .scale = shape_.logit_scale,
                               .cap = shape_.logit_softcap},
                  gpu_));
    }
    return error_;
  }

 private:
  void keep(const char* error) {
    if (error_ == nullptr) error_ = error;
  }

  /// What is added to the residual (AddNorm).
  struct Plus {
    const float *x = nullptr, *bias = nullptr, *norm = nullptr;
    int n_slices = 1;
  };
  /// Of a layer's end.
  Plus behind(const DecoderLayer& layer) const {
    return {scratch_.product, layer.down_bias, layer.ff_norm_behind, down_slices(layer)};
  }
  /// Slices of a product that a norm adds (QuantProduct); no more than scratch has room for.
  int slices(int n_in) const {
    const int n = matmul::cuda::product_slices(gpu_, n_in, shape_.n_embd, step_.n_rows);
    return n * shape_.n_embd <= widest_product(shape_) ? n : 1;
  }
  const attention::cuda::TreeAttention& attention_of(const DecoderLayer& layer) const {
    return step_.groups[static_cast<std::size_t>(layer.group)].attention;
  }
  int output_slices(const DecoderLayer& layer) const {
    return slices(attention_of(layer).n_head * attention_of(layer).head_dim);
  }
  int down_slices(const DecoderLayer& layer) const {
    return layer.experts.is_there() || layer.gate_up.n == 0 ? 1 : slices(layer.gate_up.n_out() / 2);
  }

  int given_stride() const { return (1 + shape_.n_planes) * shape_.n_embd; }
  /// What the layer gave is added to the residual later: a sum has no order.
  void add_plane(int i) {
    keep(launch(AddPlane{.n = shape_.n_embd,
                         .n_rows = step_.n_rows,
                         .rows = step_.rows,
                         .plane = static_cast<const std::uint16_t*>(step_.given) + i * shape_.n_embd,
                         .stride = given_stride(),
                         .residual = scratch_.residual},
                gpu_));
  }

  void norm(const float* weights, const Plus& plus, const OutputRows* rows = nullptr) {
    keep(launch(AddNorm{.n = shape_.n_embd,
                        .n_rows = rows != nullptr ? rows->n : step_.n_rows,
                        .residual = scratch_.residual,
                        .plus = plus.x,
                        .plus_slices = plus.n_slices,
                        .plus_stride = static_cast<std::int64_t>(step_.n_rows) * shape_.n_embd,
                        .plus_bias = plus.bias,
                        .plus_norm = plus.norm,
                        .plus_eps = shape_.eps_behind,
                        .plus_scale = shape_.residual_scale,
                        .norm = weights,
                        .eps = shape_.eps,
                        .out = scratch_.normed,
                        .rows = rows != nullptr ? rows->rows : nullptr},
                gpu_));
  }

  void multiply(const PackedMatrix& matrix, int n_rows, const void* x, int n_in, int n_out, float* y, int n_slices = 1,
                const matmul::cuda::GatedOutput& gated = {}) {
    keep(matmul::cuda::launch_quant_product({.type = matrix.type,
                                             .n_in = n_in,
                                             .n_out = n_out,
                                             .n_rows = n_rows,
                                             .weights = matrix.weights,
                                             .x = x,
                                             .y = y,
                                             .scratch = scratch_.products,
                                             .n_slices = n_slices,
                                             .gated = gated},
                                            gpu_));
  }
  void multiply(const PackedMatrices& matrices) {
    float* y = scratch_.product;
    for (int i = 0; i < matrices.n; ++i) {
      const PackedMatrices::Part& part = matrices.parts[static_cast<std::size_t>(i)];
      multiply(part.matrix, step_.n_rows, scratch_.normed, shape_.n_embd, part.n_out, y);
      y += static_cast<std::size_t>(step_.n_rows) * static_cast<std::size_t>(part.n_out);
    }
  }

  void attend(const DecoderLayer& layer) {
    const GroupStep& group = step_.groups[static_cast<std::size_t>(layer.group)];
    attention::cuda::TreeAttention attention = group.attention;
    const int n_q = attention.n_head * attention.head_dim, n_kv = attention.n_kv_head * attention.head_dim;
    multiply(layer.qkv);
    const auto from = [&](int first_out) { return layer.qkv.rows(scratch_.product, step_.n_rows, first_out); };
    keep(launch(EnterRows{.n_rows = step_.n_rows,
                          .n_head = attention.n_head,
                          .n_kv_head = attention.n_kv_head,
                          .head_dim = attention.head_dim,
                          .from_q = from(0),
                          .from_k = from(n_q),
                          .from_v = from(n_q + n_kv),
                          .q_bias = layer.q_bias,
                          .k_bias = layer.k_bias,
                          .v_bias = layer.v_bias,
                          .q_norm = layer.q_norm,
                          .k_norm = layer.k_norm,
                          .whole_norms = layer.whole_norms,
                          .eps = shape_.eps,
                          .n_turned = layer.rotation.n_turned,
                          .halves = layer.rotation.halves,
                          .frequencies = layer.rotation.frequencies,
                          .axes = layer.rotation.axes,
                          .magnitude = layer.rotation.magnitude,
                          .temperature = layer.temperature,
                          .position_size = shape_.position_size,
                          .positions = step_.positions,
                          .slots = group.slots,
                          .q = scratch_.q,
                          .bytes = attention.bytes,
                          .keys = layer.keys,
                          .values = layer.values,
                          .block_bytes = attention.block_bytes},
                gpu_));
    attention.early = step_.n_rows <= coppice::cuda::kMostEarlyRows;
    attention.q = scratch_.q;
    attention.sinks = layer.sinks;
    attention.keys = layer.keys;
    attention.values = layer.values;
    keep(launch_tree_attention(attention, gpu_.n_multiprocessors(), gpu_));
    if (attention.bytes) {
      keep(launch(
          RotateBack{
              .n_heads = step_.n_rows * attention.n_head, .head_dim = attention.head_dim, .heads = attention.out},
          gpu_));
    }
    if (const int n_gates = layer.qkv.n_out() - n_q - 2 * n_kv; n_gates > 0) {
      keep(launch(GateHeads{.n = n_q,
                            .n_rows = step_.n_rows,
                            .n_gates = n_gates,
                            .gates = from(n_q + 2 * n_kv),
                            .bias = layer.attention_gate_bias,
                            .heads = attention.out},
                  gpu_));
    }
    multiply(layer.output, step_.n_rows, attention.out, n_q, shape_.n_embd, scratch_.product, output_slices(layer));
  }

  void feed_forward(const DecoderLayer& layer) {
    const ExpertsStep experts = {.shape = shape_.experts,
                                 .n_embd = shape_.n_embd,
                                 .n_rows = step_.n_rows,
                                 .x = scratch_.normed,
                                 .out = scratch_.product,
                                 .scratch = scratch_.experts,
                                 .products = scratch_.products};
    const bool dense = layer.gate_up.n > 0;
    if (layer.experts.is_there()) keep(launch_experts(layer.experts, experts, gpu_));
    if (dense) gated_unit(layer);
    if (layer.experts.is_there()) keep(launch_experts_sum(layer.experts, experts, dense, gpu_));
  }

  void gated_unit(const DecoderLayer& layer) {
    const int n_ff = layer.gate_up.n_out() / 2;
    if (layer.gate_up.n == 1) {
      multiply(layer.gate_up.parts[0].matrix, step_.n_rows, scratch_.normed, shape_.n_embd, 2 * n_ff, nullptr, 1,
               {shape_.gate, layer.gate_bias, layer.up_bias, scratch_.gated});
    } else {
      multiply(layer.gate_up);
      keep(launch(GateRows{.gate = shape_.gate,
                           .n = n_ff,
                           .n_rows = step_.n_rows,
                           .from_gate = layer.gate_up.rows(scratch_.product, step_.n_rows, 0),
                           .from_up = layer.gate_up.rows(scratch_.product, step_.n_rows, n_ff),
                           .gate_bias = layer.gate_bias,
                           .up_bias = layer.up_bias,
                           .out = scratch_.gated},
                  gpu_));
    }
    multiply(layer.down, step_.n_rows, scratch_.gated, n_ff, shape_.n_embd, scratch_.product, down_slices(layer));
  }

  const Decoder& decoder_;
  const DecoderShape& shape_;
  const DecoderStep& step_;
  const StepScratch& scratch_;
  const Gpu& gpu_;
  const char* error_ = nullptr;
};

}  // namespace

int widest_product(const DecoderShape& shape) {
  return std::max({shape.n_embd, 2 * shape.n_ff, shape.n_qkv, shape.experts.n});
}

const char* launch_layers(const Decoder& decoder, const DecoderStep& step, const Gpu& gpu) {
  return LayerLaunches(decoder, step, gpu).run_layers();
}

const char* launch_outputs(const Decoder& decoder, const DecoderStep& step, const OutputRows& rows, const Gpu& gpu) {
  return LayerLaunches(decoder, step, gpu).run_outputs(rows);
}

}  // namespace coppice::executor::cuda
