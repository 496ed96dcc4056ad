// Linear attention on every instruction set: rows in one go, in chunks of any size and one by one give what the rule
// says, computed row by row in double precision; and the same state.
#include "recurrent/linear_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "support/normal.h"
#include "support/simd_targets.h"

namespace coppice::recurrent {
namespace {

struct Case {
  LinearShape shape;
  bool gates_together = false;
  float least_decay = 0.05F, most_decay = 0.5F;  ///< -a
};

const Case kCases[] = {
    {{.delta = true,
      .n_heads = 4,
      .n_key_heads = 2,
      .key_dim = 32,
      .value_dim = 48,
      .in_turns = true,
      .norm_eps = 1e-5F}},
    {{.delta = true,
      .n_heads = 4,
      .n_key_heads = 2,
      .key_dim = 16,
      .value_dim = 16,
      .in_turns = false,
      .norm_eps = 1e-2F},
     true},
    {{.delta = true,
      .n_heads = 1,
      .n_key_heads = 1,
      .key_dim = 128,
      .value_dim = 128,
      .in_turns = false,
      .norm_eps = 1e-6F}},
    {{.delta = false,
      .n_heads = 4,
      .n_key_heads = 2,
      .key_dim = 32,
      .value_dim = 16,
      .in_turns = false,
      .norm_eps = 0}},
    // States that forget nothing, and states that forget all at once: e^-400 is 0.
    {{.delta = true,
      .n_heads = 2,
      .n_key_heads = 2,
      .key_dim = 32,
      .value_dim = 32,
      .in_turns = false,
      .norm_eps = 1e-5F},
     false,
     0,
     0},
    {{.delta = true,
      .n_heads = 2,
      .n_key_heads = 2,
      .key_dim = 32,
      .value_dim = 32,
      .in_turns = false,
      .norm_eps = 1e-5F},
     false,
     200,
     400},
    {{.delta = false, .n_heads = 2, .n_key_heads = 1, .key_dim = 16, .value_dim = 64, .in_turns = false, .norm_eps = 0},
     false,
     200,
     400},
};

std::vector<float> random_values(std::size_t n, std::mt19937& random, float mean = 0, float spread = 1) {
  test::Normal normal(mean, spread);
  std::vector<float> values(n);
  std::ranges::generate(values, [&] { return normal(random); });
  return values;
}

/// Random rows and weights of a case.
struct Problem {
  Problem(const Case& c, int rows, std::mt19937& random) : shape(c.shape), n(rows) {
    const auto count = [](int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
    const int values = shape.n_heads * shape.value_dim;
    mixed = random_values(count(n, shape.n_channels()), random);
    z = random_values(count(n, values), random);
    gates = random_values(count(n, 2 * shape.n_heads), random);
    std::uniform_real_distribution<float> decay(c.least_decay, std::max(c.most_decay, c.least_decay));
    a.resize(static_cast<std::size_t>(shape.n_heads));
    std::ranges::generate(a, [&] { return -decay(random); });
    dt_bias = random_values(a.size(), random);
    skip = random_values(a.size(), random);
    norm = random_values(static_cast<std::size_t>(shape.value_dim), random, 1, 0.3F);
    state = random_values(count(shape.n_heads * shape.key_dim, shape.value_dim), random, 0, 0.3F);
    gates_together = c.gates_together;
  }

  LinearRows rows(std::vector<float>& y) const {
    y.assign(z.size(), 0.0F);
    const int r = shape.n_heads / shape.n_key_heads;
    return {.mixed = mixed.data(),
            .z = z.data(),
            .alpha = gates.data() + (gates_together ? r : shape.n_heads),
            .beta = gates.data(),
            .z_stride = shape.n_heads * shape.value_dim,
            .gate_stride = 2 * shape.n_heads,
            .gates_together = gates_together,
            .a = a.data(),
            .dt_bias = dt_bias.data(),
            .skip = skip.data(),
            .norm = norm.data(),
            .y = y.data()};
  }
  std::ptrdiff_t state_at(int head) const { return std::ptrdiff_t{head} * shape.key_dim * shape.value_dim; }

  LinearShape shape;
  int n;
  bool gates_together = false;
  std::vector<float> mixed, z, gates, a, dt_bias, skip, norm, state;
};

double silu(double x) {
  return x / (1 + std::exp(-x));
}

/// The rule, row by row in double precision: [n, n_heads, value_dim], and the state behind.
struct Expected {
  std::vector<double> y, state;
};

class Reference {
 public:
  Reference(const Problem& p, bool with_state) : p_(p), s_(p.shape) {
    result_.y.resize(p.z.size());
    result_.state.assign(p.state.begin(), p.state.end());
    if (!with_state) std::ranges::fill(result_.state, 0.0);
    for (int h = 0; h < s_.n_heads; ++h) {
      for (int i = 0; i < p.n; ++i) row(i, h);
    }
  }
  const Expected& result() const { return result_; }

 private:
  std::vector<double> part(int i, int at, int n, bool unit) const {
    std::vector<double> x(static_cast<std::size_t>(n));
    double square = 0;
    for (int j = 0; j < n; ++j) {
      x[static_cast<std::size_t>(j)] = p_.mixed[static_cast<std::size_t>(i * s_.n_channels() + at + j)];
      square += x[static_cast<std::size_t>(j)] * x[static_cast<std::size_t>(j)];
    }
    for (double& value : x) value /= unit ? std::sqrt(square + 1e-6) : 1;
    return x;
  }
  void row(int i, int h) {
    const int keys = s_.n_key_heads * s_.key_dim, values = s_.n_heads * s_.value_dim, r = s_.n_heads / s_.n_key_heads;
    const int key = (s_.in_turns ? h % s_.n_key_heads : h / r) * s_.key_dim;
    auto q = part(i, (s_.delta ? 0 : values + keys) + key, s_.key_dim, s_.delta);
    const auto k = part(i, (s_.delta ? keys : values) + key, s_.key_dim, s_.delta);
    const auto v = part(i, (s_.delta ? 2 * keys : 0) + h * s_.value_dim, s_.value_dim, false);
    for (double& x : q) x /= s_.delta ? std::sqrt(s_.key_dim) : 1;
    const auto at = static_cast<std::size_t>(h);
    const float* gates = p_.gates.data() + static_cast<std::ptrdiff_t>(i) * 2 * s_.n_heads;
    const double beta = gates[p_.gates_together ? h / r * 2 * r + h % r : h];
    const double alpha = gates[p_.gates_together ? h / r * 2 * r + r + h % r : s_.n_heads + h];
    const double step = std::log1p(std::exp(alpha + p_.dt_bias[at])), decay = std::exp(p_.a[at] * step);
    const double strength = s_.delta ? 1 / (1 + std::exp(-beta)) : step;
    double* state = result_.state.data() + p_.state_at(h);
    const auto cell = [&](std::size_t a, std::size_t b) -> double& {
      return state[a * static_cast<std::size_t>(s_.value_dim) + b];
    };
    std::vector<double> o(v.size());
    double square = 0;
    for (std::size_t b = 0; b < v.size(); ++b) {
      double past = 0;
      for (std::size_t a = 0; a < k.size(); ++a) past += (cell(a, b) *= decay) * k[a];
      const double written = strength * (v[b] - (s_.delta ? past : 0));
      for (std::size_t a = 0; a < k.size(); ++a) o[b] += (cell(a, b) += k[a] * written) * q[a];
      square += o[b] * o[b];
    }
    for (std::size_t b = 0; b < v.size(); ++b) {
      const auto to = static_cast<std::size_t>(i * values + h * s_.value_dim) + b;
      const double gate = silu(p_.z[to]);
      result_.y[to] = s_.delta ? o[b] / std::sqrt(square / s_.value_dim + s_.norm_eps) * p_.norm[b] * gate
                               : (o[b] + p_.skip[at] * v[b]) * gate;
    }
  }

  const Problem& p_;
  const LinearShape& s_;
  Expected result_;
};

double relative_rms(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

/// The rows in parts of these sizes; the last of them is repeated. Parts after the first are done in place.
void expect_rows(const Problem& p, const Expected& expected, bool with_state, const std::vector<int>& sizes) {
  std::vector<float> y, state(p.state.size(), std::nanf(""));
  const LinearRows rows = p.rows(y);
  std::vector<float> scratch(scratch_size(p.shape), std::nanf(""));
  std::size_t part = 0;
  for (int first = 0; first < p.n; ++part) {
    const int n = std::min(p.n - first, sizes[std::min(part, sizes.size() - 1)]);
    for (int h = 0; h < p.shape.n_heads; ++h) {
      float* out = state.data() + p.state_at(h);
      const float* in = first > 0 ? out : with_state ? p.state.data() + p.state_at(h) : nullptr;
      attend_linearly(p.shape, rows, {h, first, n, in, out}, scratch.data());
    }
    first += n;
  }
  EXPECT_LT(relative_rms(y, expected.y), 1e-5) << "parts of " << sizes.front();
  EXPECT_LT(relative_rms(state, expected.state), 1e-5) << "parts of " << sizes.front();
}

class LinearAttentionTest : public test::EachSimdTarget {};

INSTANTIATE_TEST_SUITE_P(Simd, LinearAttentionTest, testing::ValuesIn(test::simd_targets()), test::simd_target_name);

TEST_P(LinearAttentionTest, RowsInPartsOfAnySizeFollowTheRule) {
  std::mt19937 random(5);
  int index = 0;
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("case {}", index++));
    for (const int n : {1, 2, 63, 64, 65, 150}) {
      SCOPED_TRACE(fmt::format("{} rows", n));
      const Problem p(c, n, random);
      for (const bool with_state : {false, true}) {
        const Reference reference(p, with_state);
        expect_rows(p, reference.result(), with_state, {n});
        if (n == 150) {
          expect_rows(p, reference.result(), with_state, {1});
          expect_rows(p, reference.result(), with_state, {17, 1, 2, 64, 3, 16, 33});
        }
      }
    }
  }
}

/// A sequence in the middle of a step reads and writes its own rows only.
TEST_P(LinearAttentionTest, OtherRowsAreLeftAlone) {
  std::mt19937 random(6);
  const Problem p(kCases[0], 12, random);
  std::vector<float> y, state = p.state;
  const LinearRows rows = p.rows(y);
  std::ranges::fill(y, 7.0F);
  std::vector<float> scratch(scratch_size(p.shape));
  attend_linearly(p.shape, rows, {2, 4, 5, nullptr, state.data() + p.state_at(2)}, scratch.data());
  const int width = p.shape.n_heads * p.shape.value_dim;
  for (int i = 0; i < 12 * width; ++i) {
    const int row = i / width, head = i % width / p.shape.value_dim;
    const bool own = head == 2 && row >= 4 && row < 9;
    EXPECT_EQ(y[static_cast<std::size_t>(i)] == 7.0F, !own) << "row " << row << ", head " << head;
  }
  for (std::ptrdiff_t i = 0; i < std::ssize(state); ++i) {
    if (i >= p.state_at(2) && i < p.state_at(3)) continue;
    ASSERT_EQ(state[static_cast<std::size_t>(i)], p.state[static_cast<std::size_t>(i)]);
  }
}

}  // namespace
}  // namespace coppice::recurrent
