// The same steps on any number of threads give the same bits: how sums are cut depends on what is computed alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "executor/tiny.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"

namespace coppice {
namespace {

using test::ExecutorRig;
using test::random_tokens;
using test::RigPart;
using test::RigSequence;
using test::Row;

/// A long prompt in chunks, others that share parts of it, decodes beside a chunk: all logits.
std::vector<Row> rows_on(const std::string& path, const char* kv_format, int n_threads) {
  std::mt19937 random(5);
  const auto executor = test::load(path, "tree", 16, n_threads, kv_format);
  ExecutorRig rig(*executor, 3);
  std::vector<Row> rows;
  const auto keep = [&rows](std::vector<Row> more) { std::ranges::move(more, std::back_inserter(rows)); };
  std::vector<RigSequence> sequences(1);
  keep(rig.feed(sequences[0], random_tokens(random, 600), 128));
  for (const int n : {512, 512, 256, 128}) sequences.push_back(rig.fork(sequences[0], n));
  for (int step = 0; step < 4; ++step) {
    std::vector<std::vector<kv::Token>> tokens;
    for (std::size_t i = 0; i < sequences.size(); ++i) tokens.push_back(random_tokens(random, i == 4 ? 30 : 1));
    std::vector<RigPart> parts;
    for (std::size_t i = 0; i < sequences.size(); ++i) parts.push_back({&sequences[i], tokens[i]});
    keep(rig.step(parts));
  }
  return rows;
}

struct Kind {
  const char* name;
  int matrix_type;  ///< ggml's: 0 F32, whose products are ggml's, 3 Q4_1
  const char* kv_format;
};

class ThreadCountTest : public testing::TestWithParam<Kind> {};

TEST_P(ThreadCountTest, NoBitDependsOnIt) {
  test::TinyModel model;
  model.context = 4096;
  model.matrix_type = GetParam().matrix_type;
  const std::string path = test::tiny_path(fmt::format("threads-{}", GetParam().name), model);
  const std::vector<Row> one = rows_on(path, GetParam().kv_format, 1);
  ASSERT_FALSE(one.empty());
  EXPECT_TRUE(rows_on(path, GetParam().kv_format, 2) == one);
  const std::vector<Row> three =
      rows_on(path, GetParam().kv_format, 3);  // more than two: runs are cut into more pieces
  for (const int n : {7, 16}) EXPECT_TRUE(rows_on(path, GetParam().kv_format, n) == three) << n << " threads";
}

TEST(ThreadFigures, SayWhatStepsHave) {
  const auto executor = test::load(test::tiny_path("threads-figures", {}), "tree", 16, 3);
  const auto figures = [&executor] {
    const executor::ThreadFigures t = executor->thread_figures();
    return std::vector<int>{t.most, t.free, t.used};
  };
  EXPECT_EQ(figures(), (std::vector<int>{3, 3, 0})) << "no step yet";
  std::mt19937 random(1);
  ExecutorRig rig(*executor, 3);
  RigSequence sequence;
  rig.feed(sequence, random_tokens(random, 5), 5);
  EXPECT_EQ(figures(), (std::vector<int>{3, 3, 3}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, ThreadCountTest,
                         testing::Values(Kind{"f32", 0, "f16"}, Kind{"q4_1", 3, "f16"}, Kind{"q4_1_int8", 3, "int8"},
                                         Kind{"q4_1_turbo4", 3, "turbo4"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace coppice
