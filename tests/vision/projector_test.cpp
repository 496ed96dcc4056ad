// A projector's rows against those of the model authors' code (tests/oracle/make_vision_fixtures.py).
#include "vision/projector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "image/image_file.h"
#include "model/load_error.h"
#include "port/threads_beside.h"
#include "support/sanitized.h"
#include "text/vocabulary.h"

namespace coppice::vision {
namespace {

using testing::HasSubstr;

const std::filesystem::path kFixtures = COPPICE_VISION_FIXTURES;

std::vector<char> read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> read_floats(const std::filesystem::path& path) {
  const std::vector<char> bytes = read(path);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

image::Pixels picture(const std::string& name) {
  const std::vector<char> file = read(kFixtures / name / "picture.png");
  return image::decode({reinterpret_cast<const std::uint8_t*>(file.data()), file.size()}, 1 << 20).value();
}

std::vector<Stretch> stretches_of(const Parts& parts) {
  std::vector<Stretch> stretches;
  for (const auto& part : parts) {
    if (const auto* stretch = std::get_if<Stretch>(&part)) stretches.push_back(*stretch);
  }
  return stretches;
}

double distance(const std::vector<float>& seen, const float* expected) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    apart += std::pow(seen[i] - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  return std::sqrt(apart / size);
}

struct Model {
  // Where pictures keep their sizes, few rows are enough.
  explicit Model(const std::string& name, int embedding_size, const char* projector = "mmproj.gguf")
      : vocabulary(kFixtures / name / "model.gguf"),
        projector(kFixtures / name / projector, vocabulary, embedding_size, {.min_rows = 4, .max_rows = 64}) {}
  text::Vocabulary vocabulary;
  Projector projector;
};

/// GELU comes from a table of f16, and pictures go into the first product as f16, where 64-bit ARM adds in f16, too.
constexpr double kTolerance = test::kEmulated ? 8e-3 : 4e-3;

struct Tiled {
  const char* name;
  int embedding_size;
};

class TilesTest : public testing::TestWithParam<Tiled> {};
INSTANTIATE_TEST_SUITE_P(Models, TilesTest, testing::Values(Tiled{"smolvlm", 64}, Tiled{"internvl", 64}),
                         [](const auto& info) { return info.param.name; });

TEST_P(TilesTest, APictureIsCutIntoTilesWhoseRowsAreTheAuthors) {
  const auto [name, width] = GetParam();
  Model model(name, width);
  const auto parts = model.projector.prepare(picture(name));
  ASSERT_TRUE(parts.has_value());
  const auto stretches = stretches_of(*parts);
  ASSERT_EQ(stretches.size(), 3U);  // two tiles, and the whole made small
  const auto expected = read_floats(kFixtures / name / "rows.f32");
  const std::size_t tile_size = std::size_t{16} * static_cast<std::size_t>(width);
  ASSERT_EQ(expected.size(), 2 * tile_size);
  double nearest[2] = {1, 1};
  for (const Stretch& stretch : stretches) {
    EXPECT_EQ(stretch.n_rows, 16);
    EXPECT_EQ(stretch.columns, 0);
    EXPECT_FALSE(stretch.whole);
    const auto rows = model.projector.encode(stretch, [] { return false; });
    ASSERT_TRUE(rows.has_value());
    ASSERT_EQ(rows->size(), tile_size);
    for (std::size_t tile = 0; tile < 2; ++tile)
      nearest[tile] = std::min(nearest[tile], distance(*rows, &expected[tile * tile_size]));
  }
  EXPECT_LT(nearest[0], kTolerance);
  EXPECT_LT(nearest[1], kTolerance);
}

struct InOnePiece {
  const char* name;
  int embedding_size;  ///< with the planes of DeepStack
  int n_rows, columns;
  bool whole;
  double tolerance = kTolerance;
};

/// Gemma 4 takes a mean off its rows and scales what is left, so that rounding counts for more.
constexpr double kStandardized = 1e-2;

class PieceTest : public testing::TestWithParam<InOnePiece> {};
INSTANTIATE_TEST_SUITE_P(
    Models, PieceTest,
    testing::Values(InOnePiece{"gemma3", 32, 16, 0, true}, InOnePiece{"gemma4", 32, 12, 0, true, kStandardized},
                    InOnePiece{"gemma4moe", 32, 12, 0, true, kStandardized}, InOnePiece{"llama4", 32, 16, 0, false},
                    InOnePiece{"qwen25vl", 64, 15, 5, false}, InOnePiece{"qwen3vl", 3 * 64, 15, 5, false},
                    InOnePiece{"qwen3vlmoe", 3 * 64, 15, 5, false}, InOnePiece{"qwen35", 32, 15, 5, false},
                    InOnePiece{"qwen35moe", 32, 15, 5, false}, InOnePiece{"mistral3", 64, 14, 0, false}),
    [](const auto& info) { return info.param.name; });

TEST_P(PieceTest, APicturesRowsAreTheAuthors) {
  const InOnePiece& expected = GetParam();
  Model model(expected.name, expected.embedding_size);
  const auto parts = model.projector.prepare(picture(expected.name));
  ASSERT_TRUE(parts.has_value());
  const auto stretches = stretches_of(*parts);
  ASSERT_EQ(stretches.size(), 1U);
  EXPECT_EQ(stretches[0].n_rows, expected.n_rows);
  EXPECT_EQ(stretches[0].columns, expected.columns);
  EXPECT_EQ(stretches[0].whole, expected.whole);
  const auto rows = model.projector.encode(stretches[0], [] { return false; });
  ASSERT_TRUE(rows.has_value());
  const auto authors = read_floats(kFixtures / expected.name / "rows.f32");
  ASSERT_EQ(rows->size(), authors.size());
  EXPECT_LT(distance(*rows, authors.data()), expected.tolerance);
}

TEST(ProjectorTest, Llama4sTilesStandInLinesBeforeThePictureAsAWhole) {
  const Model model("llama4", 32);
  const auto shape = [&](std::uint32_t width, std::uint32_t height) {
    std::vector<std::vector<kv::Token>> texts;
    int rows = 0;
    const auto parts = model.projector.layout(width, height);
    for (const auto& part : parts.value()) {
      if (const auto* tokens = std::get_if<std::vector<kv::Token>>(&part)) texts.push_back(*tokens);
      if (const auto* stretch = std::get_if<Stretch>(&part)) rows += stretch->n_rows;
    }
    return std::pair(texts, rows);
  };
  enum : kv::Token { kBegin = 4, kEnd, kWhole, kNextInLine, kLineEnd };
  using Texts = std::vector<std::vector<kv::Token>>;
  EXPECT_EQ(shape(64, 64), std::pair(Texts({{kBegin, kWhole}, {kEnd}}), 16));
  EXPECT_EQ(shape(128, 64), std::pair(Texts({{kBegin}, {kNextInLine}, {kLineEnd, kWhole}, {kEnd}}), 3 * 16));
}

std::string refusal(const std::string& name, int n_embd, const char* projector) {
  try {
    Model model(name, n_embd, projector);
  } catch (const model::LoadError& error) {
    return error.what();
  }
  return "none";
}

TEST(ProjectorTest, WhatDoesNotFitIsOneClearError) {
  EXPECT_THAT(refusal("smolvlm", 64, "../gemma3/mmproj.gguf"),
              HasSubstr("is another model's projector: its rows have 32 values, and the model's have 64"));
  EXPECT_THAT(refusal("smolvlm", 64, "model.gguf"),
              HasSubstr("is a model of the architecture 'llama', and no projector (mmproj)"));
  EXPECT_THAT(refusal("gemma3", 32, "../llama4/mmproj.gguf"),
              HasSubstr("is another model's projector: a picture can't"));
  EXPECT_THAT(refusal("smolvlm", 64, "picture.png"), HasSubstr("picture.png"));
}

/// Encodes one picture again and again for some time, and looks how many threads do so meanwhile.
std::vector<int> threads_seen(std::chrono::milliseconds time) {
  const text::Vocabulary vocabulary(kFixtures / "gemma3" / "model.gguf");
  Projector projector(kFixtures / "gemma3" / "mmproj.gguf", vocabulary, 32, {.n_threads = 4});
  const auto stretches = stretches_of(*projector.prepare(picture("gemma3")));
  std::atomic<bool> over = false;
  std::vector<int> seen(6);
  std::thread watcher([&] {
    while (!over) ++seen[static_cast<std::size_t>(std::min(5, port::ThreadsBeside::count()))];
  });
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end)
    EXPECT_TRUE(projector.encode(stretches[0], [] { return false; }).has_value());
  over = true;
  watcher.join();
  return seen;
}

TEST(ProjectorTest, EncodesOnAllThreadsWhereNoStepsRunAndOnAQuarterBesideThem) {
  const auto alone = threads_seen(std::chrono::milliseconds(300));
  EXPECT_GT(alone[4], 0);
  EXPECT_EQ(alone[1] + alone[2] + alone[3] + alone[5], 0);
  const port::StepUnderWay step;
  const auto beside = threads_seen(std::chrono::milliseconds(300));
  EXPECT_GT(beside[1], 0);
  EXPECT_EQ(beside[2] + beside[3] + beside[4] + beside[5], 0);
}

TEST(ProjectorTest, LeavesAQuarterOfTheThreadsOfAStep) {
  EXPECT_EQ(port::ThreadsBeside::left(16), 16);
  const port::ThreadsBeside all(16);
  EXPECT_EQ(port::ThreadsBeside::left(16), 12);
  EXPECT_EQ(port::ThreadsBeside::left(2), 1);
  EXPECT_EQ(port::ThreadsBeside::left(1), 1);
}

TEST(ProjectorTest, EncodingEndsBetweenTwoPieces) {
  Model model("gemma3", 32);
  const auto stretches = stretches_of(*model.projector.prepare(picture("gemma3")));
  while (port::StepUnderWay::lately()) std::this_thread::yield();  // other tests'
  int asked = 0;
  const auto rows = model.projector.encode(stretches[0], [&] { return ++asked < 0; });
  ASSERT_TRUE(rows.has_value());
  const int pieces = asked;
  EXPECT_GT(pieces, 10);
  for (const int last : {1, 2, pieces / 2}) {
    asked = 0;
    EXPECT_FALSE(model.projector.encode(stretches[0], [&] { return ++asked >= last; }).has_value());
    EXPECT_EQ(asked, last);
    EXPECT_EQ(port::ThreadsBeside::count(), 0);
  }
  EXPECT_EQ(model.projector.encode(stretches[0], [] { return false; }), rows);
}

TEST(ProjectorTest, DigestNamesTheFileAndTheOptions) {
  const text::Vocabulary vocabulary(kFixtures / "smolvlm" / "model.gguf");
  const auto file = kFixtures / "smolvlm" / "mmproj.gguf";
  const kv::Digest plain = Projector(file, vocabulary, 64, {}).digest();
  EXPECT_EQ(plain, Projector(file, vocabulary, 64, {.n_threads = 2}).digest());
  EXPECT_NE(plain, Projector(file, vocabulary, 64, {.max_rows = 16}).digest());
}

}  // namespace
}  // namespace coppice::vision
