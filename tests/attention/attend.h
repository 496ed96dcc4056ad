// The CPU kernel on a step, and how far its results are from the scalar reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "attention/cpu/tree_attention.h"
#include "attention/reference.h"
#include "support/attention_cases.h"
#include "support/simd_targets.h"

namespace coppice::test {

struct Attended {
  std::vector<float> out;
  std::uint64_t bytes_read = 0;
};

/// Two calls on one step, as two layers of a group make them; the second one's result.
inline Attended attend(const AttentionCase& c, const PoolData& pool, std::span<const float> q, int n_workers,
                       const float* sinks = nullptr) {
  attention::SharePlanner planner(c.group);
  attention::TreeAttention kernel(c.heads, c.block_size, n_workers);
  attention::TreeStep step;
  const auto rows = c.rows();
  step.plan = &planner.plan(rows);
  make_schedule(*step.plan, kernel.cost_model(), step.schedule);
  kernel.prepare(step.schedule);
  Attended a;
  a.out.assign(q.size(), NAN);
  std::atomic<std::int32_t> next_job = 0;
  std::barrier node(n_workers);
  const auto work = [&](int worker) {
    for (int layer = 0; layer < 2; ++layer) {
      kernel.partials(step, {pool.view, q.data()}, next_job, worker, n_workers);
      node.arrive_and_wait();
      if (worker == 0) next_job = 0;
      kernel.merge(step, pool.view.format, a.out.data(), c.n_rows(), worker, n_workers, sinks);
      node.arrive_and_wait();
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 1; i < n_workers; ++i) workers.emplace_back(work, i);
  work(0);
  workers.clear();
  a.bytes_read = kernel.bytes_read() / 2;
  return a;
}

/// Largest difference, relative to the largest value of the row and head.
inline double distance(const AttentionCase& c, std::span<const float> a, std::span<const float> b) {
  double worst = 0;
  const auto dim = static_cast<std::size_t>(c.heads.head_dim);
  for (std::size_t i = 0; i < a.size(); i += dim) {
    double size = 1e-3, away = 0;
    for (std::size_t j = i; j < i + dim; ++j) {
      size = std::max(size, std::abs(double{b[j]}));
      const double d = std::abs(double{a[j]} - double{b[j]});
      away = std::isnan(d) ? 1e9 : std::max(away, d);
    }
    worst = std::max(worst, away / size);
  }
  return worst;
}

/// Many queries, and few on codes, meet keys and values as 16-bit numbers. That is seen most where values all but
/// cancel out, as random ones do; a slot too many or too few among 250 would be 20 times as much.
constexpr double kTolerance = 3e-3;

/// On each instruction set; the reference is computed once.
inline void expect_reference(const AttentionCase& c, std::uint64_t seed, int n_workers, attention::KvFormat format) {
  const PoolData pool(c, seed, format);
  const auto q = make_queries(c, seed + 1);
  std::vector<float> expected(q.size());
  const auto rows = c.rows();
  attend_reference(c.heads, pool.view, c.group, rows, q, expected);
  on_each_target([&] {
    ASSERT_LT(distance(c, attend(c, pool, q, n_workers).out, expected), kTolerance)
        << c.name << ", " << n_workers << " workers, block " << c.block_size << ", heads " << c.heads.n_head << "/"
        << c.heads.n_kv_head << " of " << c.heads.head_dim << ", " << format_name(format);
  });
}

}  // namespace coppice::test
