// Logits of prompts in which pictures' rows stand between tokens, against the model authors' code
// (tests/oracle/make_vision_fixtures.py).
#include "engine/prompt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "executor/ggml/ggml_executor.h"
#include "support/executor_rig.h"

namespace coppice {
namespace {

using executor::Batch;
using executor::RowSource;
using test::ExecutorRig;
using test::RigSequence;
using test::Row;
using test::Want;

const std::filesystem::path kFixtures = COPPICE_VISION_FIXTURES;

struct Prompt {
  std::vector<std::int32_t> symbols;  ///< a token, or -1 - r for a picture's row
  std::vector<Row> embeddings;        ///< of all pictures
  std::vector<Row> exact, f16_cache;  ///< logits of every position
  bool both_ways = false;             ///< a picture's rows see each other
  int columns = 0;                    ///< of a picture's grid; 0: its rows have running positions
};

std::vector<Row> read_rows(const std::filesystem::path& path, std::size_t width) {
  std::vector<Row> rows(std::filesystem::file_size(path) / width / sizeof(float), Row(width));
  std::ifstream data(path, std::ios::binary);
  for (Row& row : rows)
    data.read(reinterpret_cast<char*>(row.data()), static_cast<std::streamsize>(width * sizeof(float)));
  return rows;
}

Prompt read_prompt(const std::string& name, const executor::ExecutorInfo& info) {
  const auto n_vocab = static_cast<std::size_t>(info.n_vocab);
  Prompt p;
  p.symbols = nlohmann::json::parse(std::ifstream(kFixtures / name / "prompt.json")).get<std::vector<std::int32_t>>();
  p.embeddings = read_rows(kFixtures / name / "rows.f32", static_cast<std::size_t>(info.embedding_size));
  p.exact = read_rows(kFixtures / name / "logits.f32", n_vocab);
  p.f16_cache = read_rows(kFixtures / name / "logits-f16-cache.f32", n_vocab);
  p.both_ways = name.starts_with("gemma");
  p.columns = name.starts_with("qwen") ? 5 : 0;
  return p;
}

/// Positions [begin, end) of the pictures.
std::vector<kv::BothWays> pictures(const Prompt& p) {
  std::vector<kv::BothWays> all;
  for (std::int32_t i = 0; i < std::ssize(p.symbols); ++i) {
    if (p.symbols[static_cast<std::size_t>(i)] >= 0) continue;
    const bool goes_on = !all.empty() && all.back().end == i &&
                         p.symbols[static_cast<std::size_t>(i)] < p.symbols[static_cast<std::size_t>(i) - 1];
    goes_on ? void(++all.back().end) : all.push_back({i, i + 1});
  }
  return all;
}

/// Of all symbols, as the engine counts them.
engine::Prompt with_positions(const Prompt& p) {
  engine::Prompt prompt;
  const std::vector<kv::BothWays> all = pictures(p);
  for (std::int32_t i = 0, picture = 0; i < std::ssize(p.symbols);) {
    if (p.symbols[static_cast<std::size_t>(i)] >= 0) {
      prompt.append(std::vector{p.symbols[static_cast<std::size_t>(i++)]});
      continue;
    }
    const std::int32_t rows = all[static_cast<std::size_t>(picture)].end - i;
    prompt.append(engine::Medium{.name = {.digest = {}, .rows = rows},
                                 .embeddings = std::make_shared<std::vector<float>>(rows),
                                 .columns = p.columns});
    i += rows, ++picture;
  }
  return prompt;
}

/// A step of [begin, end).
std::vector<Row> step(ExecutorRig& rig, RigSequence& s, const Prompt& p, std::int32_t begin, std::int32_t end,
                      bool both_ways) {
  std::vector<kv::Token> tokens;
  for (std::int32_t i = begin; i < end; ++i) tokens.push_back(std::max(0, p.symbols[static_cast<std::size_t>(i)]));
  const test::RigPart part{&s, tokens, Want::kAll};
  Batch batch = rig.batch(std::span(&part, 1));
  for (std::int32_t i = begin; i < end; ++i) {
    const std::int32_t symbol = p.symbols[static_cast<std::size_t>(i)];
    if (symbol >= 0) continue;
    batch.rows[static_cast<std::size_t>(i - begin)] = RowSource::embedding(static_cast<int>(batch.embeddings.size()));
    batch.embeddings.emplace_back(p.embeddings[static_cast<std::size_t>(-1 - symbol)]);
  }
  if (p.columns > 0) {
    const engine::Prompt prompt = with_positions(p);
    for (std::int32_t i = begin; i < end; ++i) batch.positions.push_back(prompt.position(i));
  }
  for (const kv::BothWays& picture : pictures(p)) {
    if (both_ways && picture.begin >= begin && picture.end <= end) batch.sequences[0].both_ways.push_back(picture);
  }
  return rig.run(batch);
}

/// In steps of at most `chunk` rows, or of a whole picture.
std::vector<Row> feed(ExecutorRig& rig, const Prompt& p, int chunk, bool both_ways) {
  RigSequence s;
  std::vector<Row> rows;
  const auto n = static_cast<std::int32_t>(p.symbols.size());
  for (std::int32_t begin = 0; begin < n;) {
    std::int32_t end = std::min(n, begin + chunk);
    for (const kv::BothWays& picture : pictures(p)) {
      if (both_ways && picture.begin < end && end < picture.end)
        end = picture.begin > begin ? picture.begin : picture.end;
    }
    for (Row& row : step(rig, s, p, begin, end, both_ways)) rows.push_back(std::move(row));
    begin = end;
  }
  return rows;
}

double worst(std::span<const Row> rows, std::span<const Row> expected) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, test::relative_rms(rows[i], expected[i]));
  return worst;
}

class PromptTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Fixtures, PromptTest,
                         testing::Values("smolvlm", "gemma3", "gemma4", "gemma4moe", "llama4", "mistral3", "internvl",
                                         "qwen25vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
                         [](const auto& info) { return info.param; });

TEST_P(PromptTest, EveryBackendAgreesWithTheAuthors) {
  for (const char* attention : {"dense", "gather", "tree"}) {
    executor::GgmlOptions options;
    options.attention = attention;
    options.kv_bytes = std::size_t{8} << 20;
    options.block_size = 8;
    options.n_threads = 1;
    const auto executor =
        executor::load_ggml_executor(model::load_model(kFixtures / GetParam() / "model.gguf"), options, {});
    const Prompt p = read_prompt(GetParam(), executor->info());
    ASSERT_EQ(p.exact.size(), p.symbols.size());
    // GELU comes from a table of f16.
    const double tolerance = (GetParam().starts_with("gemma") ? 3 : 2) * worst(p.f16_cache, p.exact);
    ExecutorRig rig(*executor, 20240229);  // shuffled blocks
    std::vector<int> chunks = {100, 1, 7, 16, 23};
    if (options.attention == "tree")
      for (int chunk = 5; chunk <= 65; chunk += 4) chunks.push_back(chunk);
    for (const int chunk : chunks) {
      const auto rows = feed(rig, p, chunk, p.both_ways);
      ASSERT_EQ(rows.size(), p.exact.size());
      const double error = worst(rows, p.f16_cache);
      EXPECT_LT(error, tolerance) << attention << ", steps of " << chunk;
      fmt::print("{}, steps of {}: worst position {:.2g} of {:.2g}\n", attention, chunk, error, tolerance);
    }
    if (p.both_ways)
      EXPECT_GT(worst(feed(rig, p, 100, false), p.f16_cache), 10 * tolerance) << "rows that see only backwards";
    if (p.columns > 0) {
      Prompt in_one_line = p;
      in_one_line.columns = 0;
      EXPECT_GT(worst(feed(rig, in_one_line, 100, false), p.f16_cache), 10 * tolerance) << "positions of tokens";
    }
  }
}

}  // namespace
}  // namespace coppice
