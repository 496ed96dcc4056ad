// Linear attention with decay: a head's past is one matrix S, [key_dim, value_dim], that each row reads and writes. By
// two rules (model.h, StateRule): the gated delta net, and Mamba-2.
//
// One row is computed as the rule says. Several rows are computed in matrix form, kChunk at a time (Yang, Kautz,
// Hatamizadeh 2025, "Gated Delta Networks", section 3.3; Dao, Gu 2024, section 6). Let G_i be the sum of the decays'
// logarithms up to row i, and u_i what row i writes. With the delta rule
//   u_i = b_i (v_i - e^G_i S^T k_i - sum over j < i of e^(G_i - G_j) (k_i . k_j) u_j)
// which is a triangular system, and without it u_i = b_i v_i. Then
//   o_i = e^G_i S^T q_i + sum over j <= i of e^(G_i - G_j) (q_i . k_j) u_j
//   S'  = e^G_n S + sum over j of e^(G_n - G_j) k_j u_j^T
// No exponent is positive, so nothing overflows. Compiled for each instruction set.
#pragma once

#include <cstddef>

namespace coppice::recurrent {

struct LinearShape {
  bool delta;                ///< the delta rule; otherwise Mamba-2
  int n_heads, n_key_heads;  ///< of values and states; of queries and keys
  int key_dim, value_dim;    ///< multiples of 16
  bool in_turns;             ///< head h reads key head h % n_key_heads; otherwise h / (n_heads / n_key_heads)
  float norm_eps;            ///< of the norm behind each head; delta rule only

  int n_channels() const { return 2 * n_key_heads * key_dim + n_heads * value_dim; }
  int key_head(int head) const { return in_turns ? head % n_key_heads : head / (n_heads / n_key_heads); }
};

/// A layer's weights, and what its matrices made of a step's rows. Gates of neighbouring rows are gate_stride floats
/// apart. Nullptr where the rule has no use for it.
struct LinearRows {
  const float* mixed;  ///< [n_rows, n_channels]: q, k, v of all heads; Mamba-2: v, k, q
  const float* z;      ///< [n_rows, n_heads, value_dim]
  /// Head h's is alpha[h]; or, if gates_together, alpha[h / r * 2 r + h % r], r = n_heads / n_key_heads.
  const float* alpha;
  const float* beta;  ///< laid out as alpha
  std::ptrdiff_t z_stride, gate_stride;
  bool gates_together = false;
  const float *a, *dt_bias;  ///< [n_heads]
  const float* skip;         ///< [n_heads]
  const float* norm;         ///< [value_dim]
  float* y;                  ///< [n_rows, n_heads, value_dim]. Mamba-2: without its norm
};

/// What one head of one sequence does in a step.
struct LinearTask {
  int head;
  int first_row, n_rows;  ///< n_rows at least 1
  const float* in;        ///< S before the rows, [key_dim, value_dim]; nullptr: zeros
  float* out;             ///< S behind them; may be `in`
};

inline constexpr int kChunk = 64;

/// Floats that a worker needs for itself.
std::size_t scratch_size(const LinearShape& shape);

/// Thread safe with others that have other tasks and other scratch.
void attend_linearly(const LinearShape& shape, const LinearRows& rows, const LinearTask& task, float* scratch);

}  // namespace coppice::recurrent
