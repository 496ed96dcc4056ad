#include "sampling/params.h"

#include <gmock/gmock.h>

#include <cmath>
#include <utility>

namespace coppice::sampling {
namespace {

std::string wrong_field(const SamplingParams& params) {
  try {
    check(params, 100);
    return "";
  } catch (const ParamError& e) {
    EXPECT_THAT(e.what(), testing::StartsWith(e.field() + ": "));
    return e.field();
  }
}

TEST(SamplingParams, DefaultsAndBordersAreGood) {
  EXPECT_EQ(wrong_field({}), "");
  EXPECT_EQ(wrong_field({.temperature = 0, .top_k = -1, .top_p = 1, .min_p = 1}), "");
  EXPECT_EQ(wrong_field({.frequency_penalty = -2, .presence_penalty = 2, .logit_bias = {{99, -100}}}), "");
  EXPECT_EQ(wrong_field({.stop = {"\n", "世"}, .logprobs = kMaxTopLogprobs}), "");
}

TEST(SamplingParams, EachFieldIsNamed) {
  const float nan = std::nanf("");
  EXPECT_EQ(wrong_field({.temperature = -0.1F}), "temperature");
  EXPECT_EQ(wrong_field({.temperature = nan}), "temperature");
  EXPECT_EQ(wrong_field({.temperature = INFINITY}), "temperature");
  EXPECT_EQ(wrong_field({.top_p = 0}), "top_p");
  EXPECT_EQ(wrong_field({.top_p = nan}), "top_p");
  EXPECT_EQ(wrong_field({.top_p = 1.01F}), "top_p");
  EXPECT_EQ(wrong_field({.min_p = -0.1F}), "min_p");
  EXPECT_EQ(wrong_field({.min_p = 1.1F}), "min_p");
  EXPECT_EQ(wrong_field({.repeat_penalty = 0}), "repeat_penalty");
  EXPECT_EQ(wrong_field({.frequency_penalty = 2.1F}), "frequency_penalty");
  EXPECT_EQ(wrong_field({.presence_penalty = -2.1F}), "presence_penalty");
  EXPECT_EQ(wrong_field({.logit_bias = {{100, 1}}}), "logit_bias");
  EXPECT_EQ(wrong_field({.logit_bias = {{-1, 1}}}), "logit_bias");
  EXPECT_EQ(wrong_field({.logit_bias = {{1, 101}}}), "logit_bias");
  SamplingParams biased;
  for (kv::Token token = 0; std::cmp_less_equal(token, kMaxLogitBias); ++token) biased.logit_bias[token] = 1;
  EXPECT_EQ(wrong_field(biased), "logit_bias");
  EXPECT_EQ(wrong_field({.stop = {"a", ""}}), "stop");
  EXPECT_EQ(wrong_field({.stop = {"\xFF"}}), "stop");
  EXPECT_EQ(wrong_field({.stop = {std::string(kMaxStopBytes + 1, 'a')}}), "stop");
  EXPECT_EQ(wrong_field({.logprobs = kMaxTopLogprobs + 1}), "top_logprobs");
  EXPECT_EQ(wrong_field({.logprobs = -2}), "top_logprobs");
}

}  // namespace
}  // namespace coppice::sampling
