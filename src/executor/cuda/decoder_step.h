// A step of a Llama-shaped decoder on an NVIDIA GPU: launches only, no memory of its own, so that a CUDA graph can
// capture it. What changes from step to step (tokens, positions, slots, the attention's plans, sampling) is read from
// device memory.
//
// Per layer: norm, q k v, rotation and write into the pool, attention over the tree, its gates, output, norm, gate and
// up with the gated unit, down.
#pragma once

#include <cstdint>
#include <span>

#include "attention/cuda/tree_attention.h"
#include "executor/cuda/experts_step.h"
#include "executor/cuda/operators.h"
#include "executor/cuda/packed_matrices.h"
#include "executor/cuda/sampler.h"
#include "matmul/cuda/quant_product.h"

namespace coppice::executor::cuda {

struct DecoderShape {
  int n_embd = 0;
  int n_q = 0, n_qkv = 0;  ///< of a row: all heads' queries; DecoderLayer::qkv gives. Each of the layer that has most
  int n_ff = 0;            ///< of the widest layer
  int n_vocab = 0;
  float eps = 1e-5F;
  float eps_behind = 1e-5F;  ///< of norms behind attention and feed-forward
  float embedding_scale = 1.0F;
  float residual_scale = 1.0F;  ///< what attention and feed-forward are multiplied by before they are added
  float logit_scale = 1.0F, logit_softcap = 0.0F;  ///< FinishLogits
  Gate gate = Gate::kSilu;
  ExpertsShape experts;
  int n_planes = 0;       ///< of rows that are given, one added behind each of so many first layers
  int position_size = 1;  ///< numbers of a position
};

/// How queries and keys turn (EnterRows).
struct Rotation {
  int n_turned = 0;
  bool halves = false;
  const float* frequencies = nullptr;  ///< [n_turned / 2]
  const std::uint8_t* axes = nullptr;  ///< [n_turned / 2] (EnterRows)
  float magnitude = 1.0F;
};

/// All pointers are to device memory.
struct DecoderLayer {
  const float *attention_norm = nullptr, *ff_norm = nullptr;                ///< [n_embd]; nullptr: there is none
  const float *attention_norm_behind = nullptr, *ff_norm_behind = nullptr;  ///< likewise; nullptr: there is none
  /// n_embd to (n_head + 2 n_kv_head) * head_dim, as many as its group's attention has; behind these gates of what
  /// attention gives (GateHeads), if there are any
  PackedMatrices qkv;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;  ///< EnterRows; nullptr: there is none
  const float* attention_gate_bias = nullptr;                           ///< GateHeads, likewise
  const float *q_norm = nullptr, *k_norm = nullptr;                     ///< EnterRows, likewise
  bool whole_norms = false;                                             ///< likewise
  const float* sinks = nullptr;                                         ///< [n_head] (TreeAttention); nullptr: none
  PackedMatrix output;                                                  ///< n_head * head_dim to n_embd
  const float* output_bias = nullptr;                                   ///< [n_embd]; nullptr: there is none
  PackedMatrices gate_up;                                ///< n_embd to 2 n_ff: pairs, or two; none: only experts
  PackedMatrix down;                                     ///< n_ff to n_embd
  const float *gate_bias = nullptr, *up_bias = nullptr;  ///< [n_ff]; nullptr: there is none
  const float* down_bias = nullptr;                      ///< [n_embd], likewise; none beside experts
  ExpertsLayer experts;                                  ///< in place of that, or beside it
  Rotation rotation;
  Temperature temperature;
  int group = 0;                                 ///< of DecoderStep::groups
  std::byte *keys = nullptr, *values = nullptr;  ///< the layer's part of the pool, blocks block_bytes apart
};

struct Decoder {
  DecoderShape shape;
  std::span<const DecoderLayer> layers;  ///< on the host
  PackedMatrix embeddings, logits;
  const float* final_norm = nullptr;      ///< [n_embd]
  const float* logit_bias = nullptr;      ///< [n_vocab]; nullptr: there is none
  const float* embedding_norm = nullptr;  ///< [n_embd]; nullptr: there is none
};

/// Scratch for n_rows rows of a step.
struct StepScratch {
  float* residual = nullptr;  ///< [n_rows][n_embd]
  float* product = nullptr;   ///< [n_rows] of the widest product but the logits
  void* normed = nullptr;     ///< [n_rows][n_embd] bf16
  void* gated = nullptr;      ///< [n_rows][n_ff] bf16
  void* q = nullptr;          ///< [n_rows][n_q] bf16, the queries of every group's attention
  ExpertsScratch experts;
  matmul::cuda::ProductScratch products;
};
/// Numbers of a row of StepScratch::product.
int widest_product(const DecoderShape& shape);

/// What a layer group's layers share.
struct GroupStep {
  const std::int32_t* slots = nullptr;  ///< [n_rows] (EnterRows)
  /// Heads, plan, scratch, block_bytes, q and out, which are scratch, too. keys and values are the layers' own.
  attention::cuda::TreeAttention attention;
};

struct DecoderStep {
  int n_rows = 0;
  const std::int32_t* rows = nullptr;       ///< [n_rows] (kGivenRow)
  const std::int32_t* drawn = nullptr;      ///< by the step before
  const void* given = nullptr;              ///< bf16 [rows that are given][1 + n_planes][n_embd]; nullptr: none is
  const std::int32_t* positions = nullptr;  ///< [n_rows][position_size]
  std::span<const GroupStep> groups;        ///< on the host
  StepScratch scratch;
};

/// Rows of a step that something is wanted of.
struct OutputRows {
  int n = 0;
  const std::int32_t* rows = nullptr;  ///< [n]
  float* logits = nullptr;  ///< [n][n_vocab]; nullptr: none. Hidden states lie in StepScratch::normed, either way
};

/// Launches all layers; nullptr or why not.
const char* launch_layers(const Decoder& decoder, const DecoderStep& step, const Gpu& gpu);
/// Behind that: the last norm, and logits. May follow more than once, for different rows.
const char* launch_outputs(const Decoder& decoder, const DecoderStep& step, const OutputRows& rows, const Gpu& gpu);

}  // namespace coppice::executor::cuda
