#include "recurrent/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "recurrent/linear_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "recurrent/silu-inl.h"
#include "recurrent/small_product-inl.h"
#include "simd/kernel-inl.h"
#include "simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::recurrent::HWY_NAMESPACE {

constexpr float kLengthEps = 1e-6F;  ///< of keys' and queries' squared lengths, as the models' authors have it

/// Where a head's rows lie, and its gates.
class HeadRows {
 public:
  HeadRows(const LinearShape& shape, const LinearRows& rows, const LinearTask& task)
      : shape_(shape), rows_(rows), task_(task) {
    const std::ptrdiff_t keys = std::ptrdiff_t{shape.n_key_heads} * shape.key_dim;
    const std::ptrdiff_t values = std::ptrdiff_t{shape.n_heads} * shape.value_dim;
    const std::ptrdiff_t key = std::ptrdiff_t{shape.key_head(task.head)} * shape.key_dim;
    q_ = (shape.delta ? 0 : values + keys) + key;
    k_ = (shape.delta ? keys : values) + key;
    v_ = (shape.delta ? 2 * keys : 0) + std::ptrdiff_t{task.head} * shape.value_dim;
    const int r = shape.n_heads / shape.n_key_heads;
    gate_ = rows.gates_together ? task.head / r * 2 * r + task.head % r : task.head;
  }

  const float* q(int i) const { return mixed(i) + q_; }
  const float* k(int i) const { return mixed(i) + k_; }
  const float* v(int i) const { return mixed(i) + v_; }
  const float* z(int i) const { return rows_.z + row(i) * rows_.z_stride + value(); }
  float* y(int i) const { return rows_.y + row(i) * shape_.n_heads * shape_.value_dim + value(); }

  struct Gates {
    float log_decay, strength;  ///< not positive; what is written is multiplied by it
  };
  Gates gates(int i) const {
    const float x = rows_.alpha[row(i) * rows_.gate_stride + gate_] + rows_.dt_bias[task_.head];
    const float step = x > 20.0F ? x : std::log1p(std::exp(x));  // softplus
    const float strength =
        shape_.delta ? 1.0F / (1.0F + std::exp(-rows_.beta[row(i) * rows_.gate_stride + gate_])) : step;
    return {rows_.a[task_.head] * step, strength};
  }

 private:
  std::ptrdiff_t row(int i) const { return task_.first_row + i; }
  std::ptrdiff_t value() const { return std::ptrdiff_t{task_.head} * shape_.value_dim; }
  const float* mixed(int i) const { return rows_.mixed + row(i) * shape_.n_channels(); }

  const LinearShape& shape_;
  const LinearRows& rows_;
  const LinearTask& task_;
  std::ptrdiff_t q_, k_, v_, gate_;
};

/// The sum of a * b over n values, n a multiple of 16.
HWY_INLINE float dot(const float* a, const float* b, int n) {
  const Lanes16 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// to = x * scale; with the delta rule the result has the length `scale`.
HWY_INLINE void put_key(const LinearShape& shape, const float* x, float scale, float* to) {
  if (shape.delta) scale /= std::sqrt(dot(x, x, shape.key_dim) + kLengthEps);
  const Lanes16 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < shape.key_dim; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale)), d, to + i);
}

/// What becomes of S^T q: norm and gate, or skip and gate.
HWY_INLINE void finish(const LinearShape& shape, const LinearRows& rows, const HeadRows& head, int h, int i,
                       const float* o) {
  const Lanes16 d;
  const int lanes = static_cast<int>(hn::Lanes(d)), n = shape.value_dim;
  const float *z = head.z(i), *v = head.v(i);
  float* y = head.y(i);
  if (shape.delta) {
    const auto scale = hn::Set(d, 1.0F / std::sqrt(dot(o, o, n) / static_cast<float>(n) + shape.norm_eps));
    for (int j = 0; j < n; j += lanes) {
      const auto x = hn::Mul(hn::Mul(hn::LoadU(d, o + j), scale), hn::LoadU(d, rows.norm + j));
      hn::StoreU(hn::Mul(x, silu(d, hn::LoadU(d, z + j))), d, y + j);
    }
  } else {
    const auto skip = hn::Set(d, rows.skip[h]);
    for (int j = 0; j < n; j += lanes) {
      const auto x = hn::MulAdd(skip, hn::LoadU(d, v + j), hn::LoadU(d, o + j));
      hn::StoreU(hn::Mul(x, silu(d, hn::LoadU(d, z + j))), d, y + j);
    }
  }
}

/// kVectors of S's columns, one row: S^T k and S^T q in one pass, and what the row writes in another.
template <int kVectors>
HWY_INLINE void step_columns(const LinearShape& s, const LinearTask& task, const float* q, const float* k,
                             const float* v, float decay, float strength, float qk, int column, float* o) {
  const Lanes16 d;
  const auto lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
  using V = hn::Vec<Lanes16>;
  V with_k[kVectors], with_q[kVectors], written[kVectors];
  for (int i = 0; i < kVectors; ++i) with_k[i] = with_q[i] = hn::Zero(d);
  const std::ptrdiff_t width = s.value_dim;
  if (task.in) {
    for (int r = 0; r < s.key_dim; ++r) {
      const float* row = task.in + r * width + column;
      const V kr = hn::Set(d, k[r]), qr = hn::Set(d, q[r]);
      for (int i = 0; i < kVectors; ++i) {
        const V x = hn::LoadU(d, row + i * lanes);
        if (s.delta) with_k[i] = hn::MulAdd(x, kr, with_k[i]);
        with_q[i] = hn::MulAdd(x, qr, with_q[i]);
      }
    }
  }
  const V shrink = hn::Set(d, decay);
  for (int i = 0; i < kVectors; ++i) {
    const V value = hn::LoadU(d, v + column + i * lanes);
    written[i] = hn::Mul(hn::Set(d, strength), hn::NegMulAdd(shrink, with_k[i], value));
    hn::StoreU(hn::MulAdd(hn::Set(d, qk), written[i], hn::Mul(shrink, with_q[i])), d, o + column + i * lanes);
  }
  for (int r = 0; r < s.key_dim; ++r) {
    const V kr = hn::Set(d, k[r]);
    for (int i = 0; i < kVectors; ++i) {
      const std::ptrdiff_t at = r * width + column + i * lanes;
      const V before = task.in ? hn::Mul(shrink, hn::LoadU(d, task.in + at)) : hn::Zero(d);
      hn::StoreU(hn::MulAdd(kr, written[i], before), d, task.out + at);
    }
  }
}

void step(const LinearShape& s, const LinearRows& rows, const LinearTask& task, float* scratch) {
  const HeadRows head(s, rows, task);
  float *q = scratch, *k = q + s.key_dim, *o = k + s.key_dim;
  put_key(s, head.q(0), s.delta ? 1.0F / std::sqrt(static_cast<float>(s.key_dim)) : 1.0F, q);
  put_key(s, head.k(0), 1.0F, k);
  const auto [log_decay, strength] = head.gates(0);
  const float decay = std::exp(log_decay), qk = dot(q, k, s.key_dim);
  const int lanes = static_cast<int>(hn::Lanes(Lanes16()));
  int column = 0;
  const auto columns = [&](auto vectors) HWY_ATTR {
    constexpr int kVectors = decltype(vectors)::value;
    for (; column + kVectors * lanes <= s.value_dim; column += kVectors * lanes) {
      step_columns<kVectors>(s, task, q, k, head.v(0), decay, strength, qk, column, o);
    }
  };
  columns(std::integral_constant<int, 4>());
  columns(std::integral_constant<int, 1>());
  finish(s, rows, head, task.head, 0, o);
}

/// A chunk's matrices, and its gates.
struct Chunk {
  Chunk(const LinearShape& s, float* scratch) : key_dim(s.key_dim), value_dim(s.value_dim) {
    const auto take = [&scratch](int n) {
      float* at = scratch;
      scratch += n;
      return at;
    };
    q = take(kChunk * key_dim);
    k = take(kChunk * key_dim);
    columns = take(kChunk * key_dim);
    u = take(kChunk * value_dim);
    o = take(kChunk * value_dim);
    kk = take(kChunk * kChunk);
    qk = take(kChunk * kChunk);
    log_decay = take(kChunk);
    strength = take(kChunk);
    till_end = take(kChunk);
  }
  int key_dim, value_dim;
  float *q, *k;    ///< [kChunk, key_dim]
  float* columns;  ///< [key_dim, kChunk]: the keys, turned
  float *u, *o;    ///< [kChunk, value_dim]
  float *kk, *qk;  ///< [kChunk, kChunk]: products of keys (or queries) and keys, decayed; lower triangles
  float *log_decay, *strength, *till_end;  ///< [kChunk]: G_i, b_i, e^(G_n - G_i)
};

/// Keys, queries, gates; the keys once more as columns.
void gather(const LinearShape& s, const HeadRows& head, int first, int n, const Chunk& c) {
  const float scale = s.delta ? 1.0F / std::sqrt(static_cast<float>(s.key_dim)) : 1.0F;
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    put_key(s, head.q(first + i), scale, c.q + i * s.key_dim);
    put_key(s, head.k(first + i), 1.0F, c.k + i * s.key_dim);
    const auto [log_decay, strength] = head.gates(first + i);
    c.log_decay[i] = sum += log_decay;
    c.strength[i] = strength;
  }
  for (int i = n; i < kChunk; ++i) c.log_decay[i] = sum, c.strength[i] = 0;
  for (int r = 0; r < s.key_dim; ++r) {
    float* column = c.columns + r * kChunk;
    for (int i = 0; i < n; ++i) column[i] = c.k[i * s.key_dim + r];
    for (int i = n; i < kChunk; ++i) column[i] = 0;
  }
}

/// x[i][j] *= factor[i] * e^(G_i - G_j) for j < i + diagonal, and 0 for others. factor nullptr: 1.
void decay_triangle(const Chunk& c, int n, const float* factor, int diagonal, float* x) {
  const Lanes16 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < n; ++i) {
    float* row = x + i * kChunk;
    const auto g = hn::Set(d, c.log_decay[i]), f = hn::Set(d, factor ? factor[i] : 1.0F);
    for (int j = 0; j < i + diagonal; j += lanes) {
      const auto e = exp_of(d, hn::Min(hn::Sub(g, hn::LoadU(d, c.log_decay + j)), hn::Zero(d)));
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, row + j), f), e), d, row + j);
    }
    std::fill(row + i + diagonal, row + kChunk, 0.0F);
  }
}

constexpr int kBlock = 16;  ///< rows of a triangle that are done at once

/// Rows of products of x [n, key_dim] and the keys, up to the diagonal's block.
void key_products(const Chunk& c, int n, const float* x, float* products) {
  for (int i = 0; i < n; i += kBlock) {
    product(std::min(kBlock, n - i), i + kBlock, c.key_dim, {x + i * c.key_dim, c.key_dim}, {c.columns, kChunk}, 0.0F,
            {nullptr, 0}, {products + i * kChunk, kChunk});
  }
}

/// u := what solves u_i = u_i - sum over j < i of kk_ij u_j. kk holds minus that.
void solve(const Chunk& c, int n) {
  const std::ptrdiff_t width = c.value_dim;
  const Lanes16 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < n; i += kBlock) {
    const int rows = std::min(kBlock, n - i);
    float* u = c.u + i * width;
    if (i > 0) product(rows, c.value_dim, i, {c.kk + i * kChunk, kChunk}, {c.u, width}, 1.0F, {u, width}, {u, width});
    for (int column = 0; column < c.value_dim; column += lanes) {
      for (int r = 1; r < rows; ++r) {
        const float* weights = c.kk + (i + r) * kChunk + i;
        auto sum = hn::LoadU(d, u + r * width + column);
        for (int j = 0; j < r; ++j) {
          sum = hn::MulAdd(hn::Set(d, weights[j]), hn::LoadU(d, u + j * width + column), sum);
        }
        hn::StoreU(sum, d, u + r * width + column);
      }
    }
  }
}

/// u_i = b_i (v_i - e^G_i o_i), o being S^T k; without the delta rule b_i v_i.
void write_values(const LinearShape& s, const HeadRows& head, int first, int n, bool with_state, const Chunk& c) {
  const Lanes16 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < n; ++i) {
    const auto strength = hn::Set(d, c.strength[i]), decay = hn::Set(d, std::exp(c.log_decay[i]));
    const float *v = head.v(first + i), *past = c.o + i * s.value_dim;
    float* u = c.u + i * s.value_dim;
    for (int j = 0; j < s.value_dim; j += lanes) {
      auto x = hn::LoadU(d, v + j);
      if (with_state) x = hn::NegMulAdd(decay, hn::LoadU(d, past + j), x);
      hn::StoreU(hn::Mul(strength, x), d, u + j);
    }
  }
}

/// Rows [first, first + n) of a task: `in` is S before them.
void do_chunk(const LinearShape& s, const LinearRows& rows, const LinearTask& task, int first, int n, const float* in,
              const Chunk& c) {
  const HeadRows head(s, rows, task);
  const std::ptrdiff_t width = s.value_dim;
  const In past{in, width}, none{nullptr, 0};
  gather(s, head, first, n, c);
  if (s.delta && in) product(n, s.value_dim, s.key_dim, {c.k, s.key_dim}, past, 0.0F, none, {c.o, width});
  write_values(s, head, first, n, s.delta && in, c);
  if (s.delta) {
    float minus[kChunk];
    for (int i = 0; i < n; ++i) minus[i] = -c.strength[i];
    key_products(c, n, c.k, c.kk);
    decay_triangle(c, n, minus, 0, c.kk);
    solve(c, n);
  }
  key_products(c, n, c.q, c.qk);
  decay_triangle(c, n, nullptr, 1, c.qk);
  for (int i = 0; i < n; ++i) {
    const float decay = std::exp(c.log_decay[i]);
    for (int j = 0; j < s.key_dim; ++j) c.q[i * s.key_dim + j] *= decay;
  }
  if (in) product(n, s.value_dim, s.key_dim, {c.q, s.key_dim}, past, 0.0F, none, {c.o, width});
  for (int i = 0; i < n; i += kBlock) {
    const int m = std::min(kBlock, n - i);
    const In before = in ? In{c.o + i * width, width} : none;
    product(m, s.value_dim, i + m, {c.qk + i * kChunk, kChunk}, {c.u, width}, 1.0F, before, {c.o + i * width, width});
  }
  for (int i = 0; i < n; ++i) c.till_end[i] = std::exp(c.log_decay[n - 1] - c.log_decay[i]);
  for (int r = 0; r < s.key_dim; ++r) {
    for (int i = 0; i < n; ++i) c.columns[r * kChunk + i] *= c.till_end[i];
  }
  product(s.key_dim, s.value_dim, n, {c.columns, kChunk}, {c.u, width}, std::exp(c.log_decay[n - 1]), past,
          {task.out, width});
  for (int i = 0; i < n; ++i) finish(s, rows, head, task.head, first + i, c.o + i * width);
}

void attend(const LinearShape& s, const LinearRows& rows, const LinearTask& task, float* scratch) {
  if (task.n_rows == 1) return step(s, rows, task, scratch);
  const Chunk chunk(s, scratch);
  for (int i = 0; i < task.n_rows; i += kChunk) {
    do_chunk(s, rows, task, i, std::min(kChunk, task.n_rows - i), i == 0 ? task.in : task.out, chunk);
  }
}

}  // namespace coppice::recurrent::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::recurrent {

namespace {

HWY_EXPORT(attend);

}  // namespace

std::size_t scratch_size(const LinearShape& shape) {
  const auto keys = static_cast<std::size_t>(shape.key_dim), values = static_cast<std::size_t>(shape.value_dim);
  constexpr std::size_t kRows = kChunk;
  return kRows * (3 * keys + 2 * values + 2 * kRows + 3);
}

void attend_linearly(const LinearShape& shape, const LinearRows& rows, const LinearTask& task, float* scratch) {
  COPPICE_SIMD_CALL(attend)(shape, rows, task, scratch);
}

}  // namespace coppice::recurrent
#endif  // HWY_ONCE
