// The cache and the executor together: sets of blocks that are detached from their sequence and adopted by others keep
// their keys and values, in every format, whoever writes behind them. Two workers write and read the pool's rows.
#include "kv/cache.h"

#include <gtest/gtest.h>

#include <random>

#include "executor/ggml/ggml_executor.h"
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
  o.model_path = path.string();
  o.attention = setup.attention;
  o.kv_format = setup.format;
  o.kv_bytes = std::size_t{4} << 20;
  o.n_threads = 2;
  o.max_rows = 256;
  return executor::load_ggml_executor(o, {});
}

/// Sequences of a cache whose steps are run.
class CachedExecutor {
 public:
  explicit CachedExecutor(Executor& executor)
      : executor_(executor),
        cache_({.num_blocks = executor.info().num_blocks,
                .bytes_per_block = executor.info().bytes_per_block,
                .groups = executor.info().groups,
                .model = executor.info().model_digest,
                .layout = executor.info().layout}) {}

  kv::Cache& cache() { return cache_; }

  SeqId start(std::span<const Token> prompt) {
    const SeqId seq = cache_.admit({.prompt = prompt}).value();
    step({{seq, prompt.subspan(static_cast<std::size_t>(cache_.lengths(seq).cached_len))}});
    return seq;
  }

  struct Part {
    SeqId seq;
    std::span<const Token> tokens;
  };
  /// Logits of all rows.
  std::vector<Row> step(const std::vector<Part>& parts) {
    executor::Batch b;
    for (const Part& part : parts) EXPECT_TRUE(cache_.extend(part.seq, part.tokens, b.copies).has_value());
    for (const Part& part : parts) {
      const kv::TableView table = cache_.table(part.seq, 0);
      const std::int32_t first = cache_.lengths(part.seq).computed_len;
      b.sequences.push_back({static_cast<int>(part.tokens.size()), first, {table}});
      for (std::int32_t p = first; p < cache_.lengths(part.seq).len; ++p) {
        b.logit_rows.push_back(b.n_rows());
        b.tokens.push_back(part.tokens[static_cast<std::size_t>(p - first)]);
      }
    }
    const executor::Logits logits = executor_.forward(b);
    std::vector<Row> rows;
    for (std::size_t i = 0; i < b.logit_rows.size(); ++i) rows.emplace_back(logits.row(i).begin(), logits.row(i).end());
    for (const Part& part : parts) cache_.publish(part.seq);
    EXPECT_EQ(cache_.check_integrity(), "");
    return rows;
  }

 private:
  Executor& executor_;
  kv::Cache cache_;
};

class CacheOnExecutorTest : public testing::TestWithParam<Setup> {};

INSTANTIATE_TEST_SUITE_P(Formats, CacheOnExecutorTest,
                         testing::Values(Setup{"tree", "f16", 5e-4}, Setup{"tree", "int8", 1e-3},
                                         Setup{"tree", "turbo4", 1e-2}, Setup{"dense", "int8", 1e-3},
                                         Setup{"dense", "turbo4", 1e-2}),
                         [](const auto& info) { return std::string(info.param.attention) + "_" + info.param.format; });

TEST_P(CacheOnExecutorTest, WhatWasDetachedIsReadByAllThatAdoptIt) {
  std::mt19937 random(17);
  const auto random_tokens = [&](std::size_t n) {
    std::vector<Token> tokens(n);
    for (Token& t : tokens) t = static_cast<Token>(random() % 320);
    return tokens;
  };
  const auto executor = load(GetParam()), other = load(GetParam());
  CachedExecutor cached(*executor);
  test::ExecutorRig rig(*other);          // the same texts, each computed alone
  const auto prompt = random_tokens(75);  // two blocks and a part of the third
  const auto set = cached.cache().detach(cached.start(prompt));

  // Two write behind the set in the same step; a third one later, when the set is gone.
  std::vector<std::vector<Token>> tails;
  for (int i = 0; i < 3; ++i) tails.push_back(random_tokens(30));  // into a block of their own
  std::vector<SeqId> adopted;
  for (int i = 0; i < 3; ++i) adopted.push_back(cached.cache().adopt(set).value());
  auto rows = cached.step({{adopted[0], tails[0]}, {adopted[1], tails[1]}});
  cached.cache().drop(set);
  for (Row& row : cached.step({{adopted[2], tails[2]}})) rows.push_back(std::move(row));
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
