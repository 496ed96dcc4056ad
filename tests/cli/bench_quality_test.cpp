// The quality figures of `coppice bench --case quality`, against sums written down plainly, on a tiny random model.
#include "cli/bench_quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "executor/ggml/ggml_executor.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"

namespace coppice::cli {
namespace {

constexpr int kWindow = 100, kChunk = 32;

std::unique_ptr<executor::Executor> load(const std::string& kv_format) {
  const auto path = test::scratch_folder() / "quality.gguf";
  if (!std::filesystem::exists(path)) test::write_tiny_model({}, path);
  executor::GgmlOptions o;
  o.kv_format = kv_format;
  o.kv_bytes = std::size_t{4} << 20;
  o.n_threads = 1;
  o.max_rows = 256;
  return executor::load_ggml_executor(model::load_model(path.string()), o, {});
}

std::vector<kv::Token> random_text(std::size_t n) {
  std::mt19937 random(1);
  std::vector<kv::Token> tokens(n);
  for (kv::Token& t : tokens) t = static_cast<kv::Token>(random() % 320);
  return tokens;
}

/// log(softmax(row))
std::vector<double> log_probabilities(const test::Row& row) {
  double sum = 0;
  for (const float x : row) sum += std::exp(double{x});
  std::vector<double> all;
  for (const float x : row) all.push_back(double{x} - std::log(sum));
  return all;
}

TEST(BenchQualityTest, FiguresAreThoseOfTheirDefinitions) {
  const auto text = random_text(2 * kWindow + 50);
  const auto f16 = load("f16"), turbo4 = load("turbo4");
  const Quality q = compare_quality(*f16, *turbo4, text, kWindow, kChunk);

  double loss = 0, turbo4_loss = 0, kl = 0, worst = 0, same_top = 0;
  for (int window = 0; window < 2; ++window) {
    const auto tokens = std::span(text).subspan(static_cast<std::size_t>(window) * kWindow, kWindow);
    test::RigSequence one, other;
    const auto p_rows = test::ExecutorRig(*f16).feed(one, tokens, kWindow, test::Want::kAll);
    const auto q_rows = test::ExecutorRig(*turbo4).feed(other, tokens, kWindow, test::Want::kAll);
    for (std::size_t i = 0; i + 1 < kWindow; ++i) {
      const auto p = log_probabilities(p_rows[i]), other_p = log_probabilities(q_rows[i]);
      const auto next = static_cast<std::size_t>(tokens[i + 1]);
      loss -= p[next];
      turbo4_loss -= other_p[next];
      double divergence = 0;
      for (std::size_t t = 0; t < p.size(); ++t) divergence += std::exp(p[t]) * (p[t] - other_p[t]);
      kl += divergence;
      worst = std::max(worst, divergence);
      same_top += test::argmax(p_rows[i]) == test::argmax(q_rows[i]);
    }
  }
  constexpr double kPredictions = 2 * (kWindow - 1);
  EXPECT_EQ(q.predictions, static_cast<std::int64_t>(kPredictions));
  EXPECT_NEAR(std::log(q.perplexity_before), loss / kPredictions, 1e-4);
  EXPECT_NEAR(std::log(q.perplexity), turbo4_loss / kPredictions, 1e-4);
  EXPECT_GT(std::abs(loss - turbo4_loss), 1.0);  // so that one taken for the other would be seen
  EXPECT_GT(kl, 0);
  EXPECT_NEAR(q.kl_mean, kl / kPredictions, 0.01 * kl / kPredictions);
  EXPECT_GT(q.kl_p99, q.kl_mean);
  EXPECT_LE(q.kl_p99, worst * 1.01);
  EXPECT_NEAR(q.same_top, same_top / kPredictions, 0.011);
}

TEST(BenchQualityTest, NothingIsLostBetweenEquals) {
  const Quality q = compare_quality(*load("f16"), *load("f16"), random_text(kWindow), kWindow, kChunk);
  EXPECT_EQ(q.predictions, kWindow - 1);
  EXPECT_EQ(q.perplexity, q.perplexity_before);
  EXPECT_EQ(q.kl_mean, 0);
  EXPECT_EQ(q.same_top, 1);
}

TEST(BenchQualityTest, WhatCannotBeMeasuredIsAnError) {
  const auto a = load("f16"), b = load("f16");
  EXPECT_THROW(compare_quality(*a, *b, random_text(kWindow - 1), kWindow, kChunk), std::runtime_error);
  const int too_long = a->info().num_blocks * a->info().block_size;
  EXPECT_THROW(compare_quality(*a, *b, random_text(kWindow), too_long, kChunk), std::runtime_error);
}

}  // namespace
}  // namespace coppice::cli
