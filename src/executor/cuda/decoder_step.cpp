#include "executor/cuda/decoder_step.h"

#include <algorithm>

#include "cuda/early_rows.h"
#include "executor/cuda/operators.h"

namespace coppice::executor::cuda {

namespace {

/// Launches one after the other, until one fails.
class StepLauncher {
 public:
  StepLauncher(const Decoder& decoder, const DecoderStep& step, CUstream_st* stream)
      : decoder_(decoder), shape_(decoder.shape), step_(step), scratch_(step.scratch), stream_(stream) {}

  const char* run() {
    keep(launch(EmbedRows{.type = decoder_.embeddings.type,
                          .n = shape_.n_embd,
                          .n_rows = step_.n_rows,
                          .embeddings = decoder_.embeddings.weights,
                          .tokens = step_.tokens,
                          .residual = scratch_.residual},
                stream_));
    const float* plus = nullptr;
    for (const DecoderLayer& layer : decoder_.layers) {
      norm(layer.attention_norm, plus);
      attend(layer);
      norm(layer.ff_norm, scratch_.product);
      feed_forward(layer);
      plus = scratch_.product;
    }
    norm(decoder_.final_norm, plus);
    multiply(decoder_.logits, scratch_.normed, shape_.n_embd, shape_.n_vocab, step_.logits);
    keep(launch(step_.sampling, stream_));
    return error_;
  }

 private:
  void keep(const char* error) {
    if (error_ == nullptr) error_ = error;
  }

  void norm(const float* weights, const float* plus) {
    keep(launch(AddNorm{.n = shape_.n_embd,
                        .n_rows = step_.n_rows,
                        .residual = scratch_.residual,
                        .plus = plus,
                        .norm = weights,
                        .eps = shape_.eps,
                        .out = scratch_.normed},
                stream_));
  }

  void multiply(const PackedMatrix& matrix, const void* x, int n_in, int n_out, float* y) {
    keep(matmul::cuda::launch_quant_product({.type = matrix.type,
                                             .n_in = n_in,
                                             .n_out = n_out,
                                             .n_rows = step_.n_rows,
                                             .weights = matrix.weights,
                                             .x = x,
                                             .y = y,
                                             .scratch = scratch_.products},
                                            stream_));
  }

  void attend(const DecoderLayer& layer) {
    const int n_q = shape_.n_head * shape_.head_dim, n_kv = shape_.n_kv_head * shape_.head_dim;
    multiply(layer.qkv, scratch_.normed, shape_.n_embd, n_q + 2 * n_kv, scratch_.product);
    keep(launch(EnterRows{.n_rows = step_.n_rows,
                          .n_head = shape_.n_head,
                          .n_kv_head = shape_.n_kv_head,
                          .head_dim = shape_.head_dim,
                          .qkv = scratch_.product,
                          .n_turned = shape_.head_dim,
                          .halves = shape_.halves,
                          .frequencies = decoder_.frequencies,
                          .positions = step_.positions,
                          .slots = step_.slots,
                          .q = step_.q,
                          .bytes = step_.attention.bytes,
                          .keys = layer.keys,
                          .values = layer.values,
                          .block_bytes = step_.attention.block_bytes},
                stream_));
    attention::cuda::TreeAttention attention = step_.attention;
    attention.early = step_.n_rows <= coppice::cuda::kMostEarlyRows;
    attention.keys = layer.keys;
    attention.values = layer.values;
    keep(launch_tree_attention(attention, step_.n_workers, stream_));
    if (attention.bytes) {
      keep(launch(
          RotateBack{.n_heads = step_.n_rows * shape_.n_head, .head_dim = shape_.head_dim, .heads = attention.out},
          stream_));
    }
    multiply(layer.output, attention.out, n_q, shape_.n_embd, scratch_.product);
  }

  void feed_forward(const DecoderLayer& layer) {
    multiply(layer.gate_up, scratch_.normed, shape_.n_embd, 2 * shape_.n_ff, scratch_.product);
    keep(launch(GateRows{.n = shape_.n_ff, .n_rows = step_.n_rows, .x = scratch_.product, .out = scratch_.gated},
                stream_));
    multiply(layer.down, scratch_.gated, shape_.n_ff, shape_.n_embd, scratch_.product);
  }

  const Decoder& decoder_;
  const DecoderShape& shape_;
  const DecoderStep& step_;
  const StepScratch& scratch_;
  CUstream_st* stream_;
  const char* error_ = nullptr;
};

}  // namespace

int widest_product(const DecoderShape& shape) {
  return std::max({shape.n_embd, 2 * shape.n_ff, (shape.n_head + 2 * shape.n_kv_head) * shape.head_dim});
}

const char* launch(const Decoder& decoder, const DecoderStep& step, CUstream_st* stream) {
  return StepLauncher(decoder, step, stream).run();
}

}  // namespace coppice::executor::cuda
