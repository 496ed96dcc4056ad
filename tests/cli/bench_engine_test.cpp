// The cases of `coppice bench`, on a tiny random model: each brings the figures that bench/loads.py names.
#include "cli/bench_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

#include "cli/cache_config.h"
#include "executor/ggml/ggml_executor.h"
#include "support/executor_rig.h"
#include "support/fake_executor.h"
#include "support/family_models.h"
#include "support/gguf_writer.h"

namespace coppice::cli {
namespace {

class BenchEngineTest : public ::testing::Test {
 protected:
  static std::unique_ptr<executor::Executor> load(std::size_t kv_bytes,
                                                  const test::FamilyModel& what = {"engine", {}}) {
    const auto path = test::scratch_folder() / (what.name + ".gguf");
    if (!std::filesystem::exists(path)) test::write_tiny_model(what.model, path);
    executor::GgmlOptions o;
    o.kv_bytes = kv_bytes;
    o.n_threads = 1;
    o.max_rows = 2048;
    o.max_sequences = 32;
    return executor::load_ggml_executor(model::load_model(path.string()), o, {});
  }
  static const EngineCase& named(std::string_view name) {
    return *std::ranges::find(engine_cases(), name, &EngineCase::name);
  }
};

TEST_F(BenchEngineTest, EachCaseBringsItsFigures) {
  const auto executor = load(std::size_t{64} << 20);
  for (const EngineCase& what : engine_cases()) {
    if (what.name == "deep" || what.name == "document")
      continue;  // take minutes, and differ from others in numbers only
    const Figures list = run_case(what, *executor, 1);
    const std::map<std::string, double> figures(list.begin(), list.end());
    for (const auto& [name, value] : figures) EXPECT_GE(value, 0) << what.name << ": " << name;
    if (what.prompt > 0) {
      EXPECT_GT(figures.at("prefill_tokens_per_s"), 0);
      continue;
    }
    if (what.streams == 0) {
      EXPECT_GT(figures.at("count"), 0);
      EXPECT_GE(figures.at("p99_ms"), figures.at("median_ms"));
      EXPECT_GT(figures.at("quiet_median_ms"), 0);
      continue;
    }
    EXPECT_GT(figures.at("decode_tokens_per_s"), 0) << what.name;
    EXPECT_GT(figures.at("bookkeeping"), 0) << what.name;
    EXPECT_LT(figures.at("bookkeeping"), 1) << what.name;
    EXPECT_GE(figures.at("kv_read_ratio"), 1) << what.name;
    EXPECT_EQ(figures.contains("prefill_tokens_per_s"), what.prefill_depth >= 0) << what.name;
  }
}

// Sixteen rows read one prefix: more different bytes than a lone stream at that depth, by far fewer than sixteen times.
TEST_F(BenchEngineTest, StreamsOfTheSharedCaseStandOnOnePrefix) {
  const auto executor = load(std::size_t{64} << 20);
  const auto read = [&](std::string_view name) {
    const Figures list = run_case(named(name), *executor, 1);
    return std::map<std::string, double>(list.begin(), list.end()).at("kv_mib_per_step");
  };
  const double alone = read("depth"), together = read("shared");
  EXPECT_GT(together, alone);
  EXPECT_LT(together, 2 * alone);
}

// A device that works by itself has the next step in hand when a prompt's last one is done.
TEST_F(BenchEngineTest, PromptsOfADeviceThatWorksAheadEndWhereTheyShould) {
  const auto shape = load(std::size_t{64} << 20);
  kv::CacheConfig config = cache_config(*shape, 512);
  for (const std::string_view name : {"stream", "depth", "shared", "gaps"}) {
    testing::FakeExecutor ahead(config, 0, 1);
    const Figures list = run_case(named(name), ahead, 1);
    const std::map<std::string, double> figures(list.begin(), list.end());
    EXPECT_EQ(figures.contains("prefill_tokens_per_s"), named(name).prefill_depth >= 0) << name;
    EXPECT_GT(figures.at(name == "gaps" ? "count" : "decode_tokens_per_s"), 0) << name;
  }
}

// A prompt's last state is kept at its last block boundary: a step ends there, before the prompt does.
TEST_F(BenchEngineTest, PromptsOfHybridsTakeAsManyStepsAsTheirStatesAsk) {
  const auto hybrids = test::hybrid_models();
  const auto executor = load(std::size_t{64} << 20, *std::ranges::find(hybrids, "qwen35", &test::FamilyModel::name));
  for (const std::string_view name : {"stream", "depth"}) {
    const Figures list = run_case(named(name), *executor, 1);
    const std::map<std::string, double> figures(list.begin(), list.end());
    EXPECT_GT(figures.at("prefill_tokens_per_s"), 0) << name;
    EXPECT_GT(figures.at("decode_tokens_per_s"), 0) << name;
  }
}

TEST_F(BenchEngineTest, APoolThatIsTooSmallIsAnError) {
  EXPECT_THROW(run_case(named("batch"), *load(std::size_t{1} << 18), 1), std::runtime_error);
}

TEST(MedianTest, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace coppice::cli
