#include "sampling/logit_scan.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "support/normal.h"
#include "text/fixtures.h"

namespace coppice::sampling {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

std::vector<float> normal_logits(std::mt19937_64& random, std::size_t n) {
  test::Normal normal(0, 3);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

TEST(LogitScan, ExpIsExact) {
  for (double x = 0; x > -86.9; x -= 0.00137) {
    const auto given = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(given));
    ASSERT_NEAR(static_cast<double>(exp_negative(given)) / expected, 1, 3e-7) << given;
  }
  EXPECT_EQ(exp_negative(0), 1);
  EXPECT_EQ(exp_negative(-100), 0);
  EXPECT_EQ(exp_negative(kNone), 0);
}

TEST(LogitScan, ArgmaxIsTheFirstOfEquals) {
  std::mt19937_64 random = test::seeded_random();
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> logits(1 + test::pick_below(random, 400));
    for (float& x : logits) x = static_cast<float>(test::pick_below(random, 8));  // many ties
    LogitScan scan;
    scan.scan(logits);
    ASSERT_EQ(scan.argmax(), std::ranges::max_element(logits) - logits.begin());
  }
  LogitScan scan;
  const std::vector<float> none(100, kNone);
  scan.scan(none);
  EXPECT_EQ(scan.argmax(), 0);
  const std::vector<float> with_nan = {std::nanf(""), 1, std::nanf(""), 2, 0};
  scan.scan(with_nan);
  EXPECT_EQ(scan.argmax(), 3);
}

TEST(LogitScan, SumsAndTopEqualTheNaiveOnes) {
  std::mt19937_64 random = test::seeded_random();
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> logits = normal_logits(random, 1 + test::pick_below(random, 3000));
    LogitScan scan;
    scan.scan(logits);
    const float max = *std::ranges::max_element(logits);
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x - max) * 0.7);
    ASSERT_NEAR(scan.sum_exp(0.7F) / sum, 1, 1e-6);

    std::vector<kv::Token> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<kv::Token>(i);
    std::ranges::sort(order, {}, [&](kv::Token t) { return std::pair(-logits[static_cast<std::size_t>(t)], t); });
    const std::size_t k = 1 + test::pick_below(random, 100);
    std::vector<Candidate> top;
    scan.top(k, top);
    ASSERT_EQ(top.size(), std::min(k, logits.size()));
    for (std::size_t i = 0; i < top.size(); ++i) ASSERT_EQ(top[i].token, order[i]);
  }
}

TEST(LogitScan, RankCountsTheLikelierOnes) {
  std::mt19937_64 random = test::seeded_random();
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits = normal_logits(random, 1 + test::pick_below(random, 1000));
    if (round % 2 == 0)
      for (float& x : logits) x = std::round(x);  // many ties
    LogitScan scan;
    scan.scan(logits);
    const auto token = static_cast<kv::Token>(test::pick_below(random, logits.size()));
    const Candidate own{token, logits[static_cast<std::size_t>(token)], 0};
    std::int32_t rank = 1;
    for (std::size_t i = 0; i < logits.size(); ++i)
      rank += likelier(Candidate{static_cast<kv::Token>(i), logits[i], 0}, own) ? 1 : 0;
    ASSERT_EQ(scan.rank(token), rank);
    std::vector<Candidate> top;
    scan.top(1, top);
    ASSERT_EQ(scan.rank(top[0].token), 1);
  }
}

// draw() is the inverse of the running sum, wherever the target falls.
TEST(LogitScan, DrawFindsTheTokenOfTheRunningSum) {
  std::mt19937_64 random = test::seeded_random();
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits = normal_logits(random, 1 + test::pick_below(random, 1000));
    for (float& x : logits) {
      if (test::pick_below(random, 10) == 0) x = kNone;
    }
    logits[0] = 0;
    LogitScan scan;
    scan.scan(logits);
    const double total = scan.sum_exp(1);
    for (int i = 0; i < 50; ++i) {
      const double target = std::uniform_real_distribution<>(0, total)(random);
      const auto token = static_cast<std::size_t>(scan.draw(target));
      ASSERT_LT(token, logits.size());
      ASSERT_NE(logits[token], kNone);
      double before = 0;
      for (std::size_t t = 0; t < token; ++t) before += std::exp(static_cast<double>(logits[t] - scan.max()));
      const double own = std::exp(static_cast<double>(logits[token] - scan.max()));
      ASSERT_GE(target, before - total * 1e-5);
      ASSERT_LE(target, before + own + total * 1e-5);
    }
  }
}

}  // namespace
}  // namespace coppice::sampling
