// The cache and the executor together: blocks that several sequences stand on keep their keys and values, in every
// format, whoever writes behind them. Two workers write and read the pool's rows.
#include "kv/cache.h"

#include <gtest/gtest.h>

#include <random>

#include "executor/ggml/ggml_executor.h"
#include "support/cached_executor.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"

namespace coppice {
namespace {

using executor::Executor;
using kv::SeqId;
using kv::Token;
using test::Row;

struct Setup {
  const char* attention;
  const char* format;
  double tolerance;  ///< as in tiny_test.cpp: another schedule, another last bit
};

std::unique_ptr<Executor> load(const Setup& setup) {
  const auto path = test::scratch_folder() / "tiny.gguf";
  if (!std::filesystem::exists(path)) test::write_tiny_model({}, path);
  executor::GgmlOptions o;
  o.attention = setup.attention;
  o.kv_format = setup.format;
  o.kv_bytes = std::size_t{4} << 20;
  o.n_threads = 2;
  o.max_rows = 256;
  return executor::load_ggml_executor(model::load_model(path.string()), o, {});
}

class CacheOnExecutorTest : public testing::TestWithParam<Setup> {};

INSTANTIATE_TEST_SUITE_P(Formats, CacheOnExecutorTest,
                         testing::Values(Setup{"tree", "f16", 5e-4}, Setup{"tree", "int8", 1e-3},
                                         Setup{"tree", "turbo4", 1e-2}, Setup{"dense", "int8", 1e-3},
                                         Setup{"dense", "turbo4", 1e-2}),
                         [](const auto& info) { return std::string(info.param.attention) + "_" + info.param.format; });

TEST_P(CacheOnExecutorTest, WhatIsSharedIsReadByAllWhoForkIt) {
  std::mt19937 random(17);
  const auto random_tokens = [&](std::size_t n) {
    std::vector<Token> tokens(n);
    for (Token& t : tokens) t = static_cast<Token>(random() % 320);
    return tokens;
  };
  const auto executor = load(GetParam()), other = load(GetParam());
  test::CachedExecutor cached(*executor);
  test::ExecutorRig rig(*other);          // the same texts, each computed alone
  const auto prompt = random_tokens(75);  // two blocks and a part of the third

  // Two write behind the prompt in the same step; a third one later, when it alone holds the tail.
  std::vector<std::vector<Token>> tails;
  for (int i = 0; i < 3; ++i) tails.push_back(random_tokens(30));  // into a block of their own
  std::vector<SeqId> forks = {cached.start(prompt)};
  for (int i = 1; i < 3; ++i) forks.push_back(cached.cache().fork(forks[0]));
  auto rows = cached.step({{forks[0], tails[0]}, {forks[1], tails[1]}});
  for (Row& row : cached.step({{forks[2], tails[2]}})) rows.push_back(std::move(row));
  EXPECT_EQ(cached.cache().stats().cow_forks, 2);

  ASSERT_EQ(rows.size(), 90U);
  for (std::size_t i = 0; i < tails.size(); ++i) {
    std::vector<Token> whole = prompt;
    whole.insert(whole.end(), tails[i].begin(), tails[i].end());
    test::RigSequence alone;
    const auto expected = rig.feed(alone, whole, 256, test::Want::kAll);
    for (std::size_t j = 0; j < 30; ++j) {
      EXPECT_LT(test::relative_rms(rows[30 * i + j], expected[75 + j]), GetParam().tolerance) << i << ", row " << j;
    }
  }
}

}  // namespace
}  // namespace coppice
