// What a step computes on an NVIDIA GPU between matrix products and attention, each as one kernel: embedding rows, sums
// and norms of the residual, rotation of queries and keys with their way into the pool, gates. Products take bf16 and
// give f32; the residual is f32.
//
// Plain pointers to device memory, 16-byte aligned. Each launch returns nullptr or why not; it may begin before the
// launch in front of it has ended, and waits for that itself. Deterministic: the same arguments and memory give the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "cuda/gate.h"
#include "cuda/gpu.h"
#include "matmul/quant_matrix.h"

namespace coppice::executor::cuda {

using coppice::cuda::Gpu;

/// What a row computes, in one number: a token; -1 - i: the token that the i-th sample of the step before drew;
/// kGivenRow + i: none, but the i-th of the rows that are given in tokens' place.
inline constexpr std::int32_t kGivenRow = std::numeric_limits<std::int32_t>::min();
constexpr bool is_given(std::int32_t row) {
  return row < kGivenRow / 2;
}

/// Rows of packed embeddings (matmul/cuda/quant_pack.h) as numbers, and rows that are given.
struct EmbedRows {
  matmul::QuantType type = matmul::QuantType::kBf16;
  int n = 0;  ///< of a row
  int n_rows = 0;
  const std::byte* embeddings = nullptr;
  const std::int32_t* rows = nullptr;   ///< [n_rows] (kGivenRow)
  const std::int32_t* drawn = nullptr;  ///< that the step before drew; what is below 0 there, is token 0
  float scale = 1.0F;                   ///< what tokens' are multiplied by
  const float* norm = nullptr;          ///< [n], of the scaled ones; nullptr: they are not normalised
  float eps = 0.0F;                     ///< of this norm
  const void* given = nullptr;          ///< bf16, rows that begin `given_stride` numbers apart; they stay as they are
  int given_stride = 0;
  float* residual = nullptr;  ///< [n_rows][n]
};
const char* launch(const EmbedRows& args, const Gpu& gpu);

/// residual += plane, of rows that are given (EmbedRows).
struct AddPlane {
  int n = 0, n_rows = 0;
  const std::int32_t* rows = nullptr;  ///< [n_rows]
  const void* plane = nullptr;         ///< bf16, [n] of each row that is given, `stride` numbers apart
  int stride = 0;
  float* residual = nullptr;  ///< [n_rows][n]
};
const char* launch(const AddPlane& args, const Gpu& gpu);

/// residual += plus_scale * (plus + plus_bias), this normalised or not; out = residual / sqrt(mean of residual^2 + eps)
/// * norm, in bf16.
struct AddNorm {
  int n = 0, n_rows = 0;        ///< n: a multiple of 4, at most kMostNormed
  float* residual = nullptr;    ///< [n_rows][n]
  const float* plus = nullptr;  ///< likewise, the sum of slices; nullptr: nothing is added
  int plus_slices = 1;
  std::int64_t plus_stride = 0;      ///< numbers from a slice to the next one; a multiple of 4
  const float* plus_bias = nullptr;  ///< [n], added to plus first; nullptr: nothing is
  const float* plus_norm = nullptr;  ///< [n]; nullptr: plus is added as it is
  float plus_eps = 0.0F;             ///< of this norm
  float plus_scale = 1.0F;
  const float* norm = nullptr;  ///< [n]; nullptr: out is the residual
  float eps = 0.0F;
  void* out = nullptr;  ///< [n_rows][n] bf16
  /// [n_rows] Which rows of residual and plus are read; the residual stays as it is. nullptr: all in order.
  const std::int32_t* rows = nullptr;
};
inline constexpr int kMostNormed = 16384;
const char* launch(const AddNorm& args, const Gpu& gpu);

/// Numbers that a product gave: row i begins `stride` numbers behind row i - 1.
struct ProductRows {
  const float* x = nullptr;
  int stride = 0;
};

/// Queries at position p are multiplied by 1 + scale * ln(1 + floor((p + offset) / length)).
struct Temperature {
  float scale = 0.0F;  ///< 0: they aren't
  int length = 1, offset = 0;
};

/// From a product's q, k and v: queries for attention, keys and values in the pool.
struct EnterRows {
  int n_rows = 0;
  int n_head = 0, n_kv_head = 0;
  int head_dim = 0;                    ///< a multiple of 16, at most 256
  ProductRows from_q, from_k, from_v;  ///< [heads][head_dim] each
  const float* q_bias = nullptr;       ///< [n_head][head_dim], added first; nullptr: nothing is
  const float* k_bias = nullptr;       ///< [n_kv_head][head_dim], likewise
  const float* v_bias = nullptr;       ///< likewise
  const float* q_norm = nullptr;       ///< [head_dim]; nullptr: queries are not normalised
  const float* k_norm = nullptr;       ///< likewise
  bool whole_norms = false;  ///< they are of a row's heads together: [n_head][head_dim], [n_kv_head][head_dim]
  float eps = 0.0F;          ///< of these norms
  int n_turned = 0;          ///< values of a head that turn, from the start
  bool halves = false;       ///< pair i is values i and i + n_turned / 2; else 2 i and 2 i + 1
  const float* frequencies = nullptr;  ///< [n_turned / 2], radians a token
  /// [n_turned / 2] Which number of a position turns a pair; nullptr: the first.
  const std::uint8_t* axes = nullptr;
  float magnitude = 1.0F;  ///< what turned values are multiplied by
  Temperature temperature;
  int position_size = 1;                    ///< numbers of a position
  const std::int32_t* positions = nullptr;  ///< [n_rows][position_size]; the temperature goes by the first
  const std::int32_t* slots = nullptr;  ///< [n_rows] of the pool: block * block size + slot in it; below 0: not written
  void* q = nullptr;                    ///< [n_rows][n_head][head_dim] bf16
  bool bytes = false;  ///< the pool's order is byte-rows (attention/cuda/block_order.h), and queries are rotated too
  std::byte *keys = nullptr, *values = nullptr;  ///< of a layer
  std::int64_t block_bytes = 0;
};
const char* launch(const EnterRows& args, const Gpu& gpu);

/// Attention over byte-rows gives rotated heads: turns them back.
struct RotateBack {
  int n_heads = 0;  ///< of all rows
  int head_dim = 0;
  void* heads = nullptr;  ///< [n_heads][head_dim] bf16
};
const char* launch(const RotateBack& args, const Gpu& gpu);

/// heads *= sigmoid(gates + bias): a gate for each value of a row, or for neighbours, such as a head.
struct GateHeads {
  int n = 0, n_rows = 0;        ///< n: of a row, even
  int n_gates = 0;              ///< of a row; divides n
  ProductRows gates;            ///< [n_gates]
  const float* bias = nullptr;  ///< likewise; nullptr: nothing is added
  void* heads = nullptr;        ///< [n_rows][n] bf16
};
const char* launch(const GateHeads& args, const Gpu& gpu);

using coppice::cuda::Gate;

/// A gated linear unit: out = gate(from_gate) * from_up. n, and where products' rows begin: multiples of 4 numbers.
struct GateRows {
  Gate gate = Gate::kSilu;
  int n = 0, n_rows = 0;
  ProductRows from_gate, from_up;       ///< [n] each
  const float* weights = nullptr;       ///< row i of both is multiplied by weights[pairs[i]] first; nullptr: it isn't
  const std::int32_t* pairs = nullptr;  ///< [n_rows]
  const float* gate_bias = nullptr;     ///< [parts][n], added then; nullptr: nothing is
  const float* up_bias = nullptr;       ///< likewise
  const std::int32_t* parts = nullptr;  ///< [n_rows] which bias each row gets; nullptr: the first
  void* out = nullptr;                  ///< [n_rows][n] bf16
};
const char* launch(const GateRows& args, const Gpu& gpu);

/// What a model does to its logits: x = scale * (x + bias), then cap * tanh(x / cap).
struct FinishLogits {
  int n = 0, n_rows = 0;
  float* logits = nullptr;      ///< [n_rows][n]
  const float* bias = nullptr;  ///< [n]; nullptr: there is none
  float scale = 1.0F;
  float cap = 0.0F;  ///< 0: there is none
};
const char* launch(const FinishLogits& args, const Gpu& gpu);

}  // namespace coppice::executor::cuda
