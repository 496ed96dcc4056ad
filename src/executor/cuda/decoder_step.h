// A step of a Llama-shaped decoder on an NVIDIA GPU, from tokens to tokens: launches only, no memory of its own, so that a CUDA graph can
// capture it. What changes from step to step (tokens, positions, slots, the attention's plan, sampling) is read from device memory.
//
// Per layer: norm, q k v, rotation and write into the pool, attention over the tree, output, norm, gate and up, SwiGLU, down.
#pragma once

#include <span>

#include "attention/cuda/tree_attention.h"
#include "executor/cuda/sampler.h"
#include "matmul/cuda/quant_product.h"

namespace coppice::executor::cuda {

struct DecoderShape {
  int n_embd = 0, n_head = 0, n_kv_head = 0, head_dim = 0, n_ff = 0, n_vocab = 0;
  float eps = 1e-5F;
  bool halves = false;  ///< how rotated values are paired (EnterRows)
};

/// Packed; in device memory, as all pointers here.
struct PackedMatrix {
  matmul::QuantType type = matmul::QuantType::kBf16;
  const std::byte* weights = nullptr;
};

struct DecoderLayer {
  const float *attention_norm = nullptr, *ff_norm = nullptr;  ///< [n_embd]
  PackedMatrix qkv;                                           ///< n_embd to (n_head + 2 n_kv_head) * head_dim
  PackedMatrix output;                                        ///< n_head * head_dim to n_embd
  PackedMatrix gate_up;                                       ///< n_embd to 2 n_ff
  PackedMatrix down;                                          ///< n_ff to n_embd
  std::byte *keys = nullptr, *values = nullptr;  ///< the layer's part of the pool, blocks block_bytes apart
};

struct Decoder {
  DecoderShape shape;
  std::span<const DecoderLayer> layers;  ///< on the host
  PackedMatrix embeddings, logits;
  const float* final_norm = nullptr;   ///< [n_embd]
  const float* frequencies = nullptr;  ///< [head_dim / 2]
};

/// Scratch for n_rows rows of a step; see step_scratch().
struct StepScratch {
  float* residual = nullptr;  ///< [n_rows][n_embd]
  float* product = nullptr;   ///< [n_rows] of the widest product but the logits
  void* normed = nullptr;     ///< [n_rows][n_embd] bf16
  void* gated = nullptr;      ///< [n_rows][n_ff] bf16
  matmul::cuda::ProductScratch products;
};
/// Numbers of a row of StepScratch::product.
int widest_product(const DecoderShape& shape);

struct DecoderStep {
  int n_rows = 0;
  const std::int32_t* tokens = nullptr;     ///< [n_rows]
  const std::int32_t* positions = nullptr;  ///< [n_rows]
  const std::int32_t* slots = nullptr;      ///< [n_rows] (EnterRows)
  /// Of every layer: heads, plan, scratch, block_bytes, q [n_rows][n_head][head_dim] and out, which are scratch, too. keys and values
  /// are the layers' own.
  attention::cuda::TreeAttention attention;
  void* q = nullptr;        ///< attention.q
  int n_workers = 0;        ///< launch_tree_attention's
  float* logits = nullptr;  ///< [n_rows][n_vocab]
  SampleRows sampling;      ///< of all rows
  StepScratch scratch;
};

/// Launches all of it on `stream`; nullptr or why not.
const char* launch(const Decoder& decoder, const DecoderStep& step, CUstream_st* stream);

}  // namespace coppice::executor::cuda
