// Logits against the model authors' own code: tiny random models of each family, and what the transformers package
// computed for them (fixtures/, made by make_fixtures.py). libllama runs the same files, so that a fixture which says
// something wrong is found, too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor/ggml/ggml_executor.h"
#include "model/families.h"
#include "support/executor_rig.h"
#include "support/libllama.h"

namespace coppice {
namespace {

using executor::Executor;
using test::ExecutorRig;
using test::RigSequence;
using test::Row;
using test::Want;

/// In relative RMS of one position's logits: between two programs that compute the same in f32.
constexpr double kF32 = 2e-5;
/// Where weights are quantised and what they multiply is rounded to 8 bits.
constexpr double kRounded = 5e-2;

struct Fixture {
  std::string name;
  std::string model;              ///< path of the GGUF file
  std::vector<kv::Token> tokens;  ///< one sequence
  std::vector<Row> exact;         ///< logits of every position
  std::vector<Row> f16_cache;     ///< the same with keys and values rounded to f16
  bool gelu = false, quantised = false;
  std::map<int, std::string> marks;  ///< position -> what begins to matter there
};

std::filesystem::path fixtures_folder() {
  return COPPICE_ORACLE_FIXTURES;
}

std::vector<Row> read_rows(const std::filesystem::path& path, std::size_t n) {
  std::ifstream data(path, std::ios::binary);
  const std::size_t n_columns = std::filesystem::file_size(path) / n / sizeof(float);
  std::vector<Row> rows(n, Row(n_columns));
  for (Row& row : rows) {
    data.read(reinterpret_cast<char*>(row.data()), static_cast<std::streamsize>(n_columns * sizeof(float)));
  }
  if (!data) throw std::runtime_error("cannot read " + path.string());
  return rows;
}

Fixture read_fixture(const std::string& name) {
  const auto folder = fixtures_folder() / name;
  std::ifstream text(folder / "fixture.json");
  if (!text) throw std::runtime_error("incomplete fixture " + folder.string());
  const auto json = nlohmann::json::parse(text);
  Fixture f{.name = name, .model = folder / "model.gguf", .tokens = json.at("tokens")};
  f.gelu = json.at("activation").get<std::string>().starts_with("gelu");
  f.quantised = json.contains("experts");
  for (const auto& [position, what] : json.at("marks").items()) f.marks[std::stoi(position)] = what;
  f.exact = read_rows(folder / "logits.f32", f.tokens.size());
  f.f16_cache = read_rows(folder / "logits-f16-cache.f32", f.tokens.size());
  return f;
}

/// What is allowed where numbers are rounded otherwise: twice what rounding keys and values to f16 costs, at the worst
/// position. Models differ by a factor of 20 in what a last bit does to them, so each is its own measure. Backends
/// round at other moments, which flips last bits. Three times where ggml reads GELU from a table of f16, which costs as
/// much again.
double rounding_tolerance(const Fixture& f) {
  if (f.quantised) return kRounded;
  double worst = 0;
  for (std::size_t i = 0; i < f.exact.size(); ++i) {
    worst = std::max(worst, test::relative_rms(f.f16_cache[i], f.exact[i]));
  }
  return (f.gelu ? 3 : 2) * worst;
}

std::vector<std::string> fixture_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures_folder()))
    names.insert(entry.path().filename());
  return {names.begin(), names.end()};
}

/// How far rows are from what is expected of positions from `first` on.
struct Comparison {
  double worst = 0;
  int n_wrong = 0;
  int first_wrong = -1;  ///< position
  double first_error = 0;
  double multiple = 1;  ///< what is expected there, times this, comes nearest
};

Comparison compare(std::span<const Row> rows, std::span<const Row> expected, double tolerance, int first = 0) {
  expected = expected.subspan(static_cast<std::size_t>(first));
  if (rows.size() != expected.size()) throw std::runtime_error("rows are missing");
  Comparison c;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double error = test::relative_rms(rows[i], expected[i]);
    if (std::isfinite(error)) c.worst = std::max(c.worst, error);
    if (error < tolerance) continue;  // not a number is wrong
    if (++c.n_wrong > 1) continue;
    c.first_wrong = static_cast<int>(i) + first;
    c.first_error = error;
    double dot = 0, square = 0;
    for (std::size_t j = 0; j < expected[i].size(); ++j) {
      dot += double{rows[i][j]} * double{expected[i][j]};
      square += double{expected[i][j]} * double{expected[i][j]};
    }
    c.multiple = dot / square;
  }
  return c;
}

/// What differs, and where to look for it.
std::string explain(const Fixture& f, const Comparison& c, const std::string& way) {
  std::string text = fmt::format(
      "{}, {}: {} positions of {} differ, the worst by {:.2g}; the first is {}, by {:.2g} (or, taken {:.3g} times, "
      "less)",
      f.name, way, c.n_wrong, f.tokens.size(), c.worst, c.first_wrong, c.first_error, c.multiple);
  if (c.first_wrong == 0) {
    text +=
        "\n  Position 0 attends to itself alone: look at embedding, norms, values, feed-forward, residuals, logits.";
  } else {
    text += "\n  Position 0 is right: look at rope, norms of queries and keys, the scores' scale and cap, masks.";
  }
  for (const auto& [position, what] : f.marks) text += fmt::format("\n  From position {} on: {}.", position, what);
  return text;
}

/// What libllama does otherwise than the model's authors: fixture -> first position where that shows.
const std::map<std::string, int> kLibllamaDiffers = {
    {"phi-window", 8},    // it reads the window and ignores it
    {"llama4", 8},        // its chunks have 8192 tokens, whatever the file says
    {"llama4-dense", 8},  // likewise
    {"gpt-oss", 1},       // YaRN's ramp begins and ends at whole pairs
    {"qwen3next", 0},     // the norms' epsilon is added to the squared lengths of keys and queries, too
};

class OracleTest : public testing::TestWithParam<std::string> {
 protected:
  const Fixture fixture_ = read_fixture(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Fixtures, OracleTest, testing::ValuesIn(fixture_names()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST_P(OracleTest, LibllamaAgrees) {
  test::Libllama reference(fixture_.model, /*flash_attention=*/false, 1, /*f32_cache=*/true);
  const auto rows = reference.feed(fixture_.tokens, static_cast<int>(fixture_.tokens.size()));
  const double tolerance = fixture_.gelu || fixture_.quantised ? rounding_tolerance(fixture_) : kF32;
  const Comparison c = compare(rows, fixture_.exact, tolerance);
  const auto known = kLibllamaDiffers.find(fixture_.name);
  EXPECT_EQ(c.first_wrong, known == kLibllamaDiffers.end() ? -1 : known->second) << explain(fixture_, c, "libllama");
  fmt::print("libllama: worst position {:.2g} of {:.2g}\n", c.worst, tolerance);
}

TEST_P(OracleTest, EveryBackendAgrees) {
  const std::string architecture = model::GgufFile(fixture_.model).text("general.architecture").value_or("none");
  if (!std::ranges::count(model::known_architectures(), architecture)) {
    GTEST_SKIP() << "the architecture '" << architecture << "' is not known yet";
  }
  const std::span tokens(fixture_.tokens);
  for (const char* attention : {"dense", "gather", "tree"}) {
    executor::GgmlOptions o;
    o.attention = attention;
    o.kv_bytes = std::size_t{16} << 20;  // the rig keeps all states
    o.block_size = 8;                    // many blocks, and windows that are no multiple of one
    o.n_threads = 1;
    const auto e = executor::load_ggml_executor(model::load_model(fixture_.model), o, {});
    const auto check = [&](std::span<const Row> rows, int first, const char* way) {
      const Comparison c = compare(rows, fixture_.f16_cache, rounding_tolerance(fixture_), first);
      EXPECT_EQ(c.n_wrong, 0) << explain(fixture_, c, fmt::format("{}, {}", attention, way));
      fmt::print("{}, {}: worst position {:.2g} of {:.2g}\n", attention, way, c.worst, rounding_tolerance(fixture_));
    };
    ExecutorRig rig(*e, 20240229);  // shuffled blocks
    {
      RigSequence s;
      check(rig.feed(s, tokens, 60, Want::kAll), 0, "one prefill");
    }
    {
      RigSequence s;
      auto rows = rig.feed(s, tokens.first(20), 20, Want::kAll);
      for (Row& r : rig.feed(s, tokens.subspan(20), 1, Want::kAll)) rows.push_back(std::move(r));
      check(rows, 0, "prefill of 20, then one by one");
    }
    {
      // Another sequence goes on otherwise after 37 tokens, in mid-block, where it has a state if there are any.
      std::vector<kv::Token> other(tokens.begin(), tokens.begin() + 37);
      other.insert(other.end(), tokens.begin(), tokens.begin() + 11);
      RigSequence a;
      rig.feed(a, other, 37, Want::kNone);
      RigSequence b = rig.fork(a, 37);
      check(rig.feed(b, tokens.subspan(37), 23, Want::kAll), 37, "fork at 37");
    }
  }
}

}  // namespace
}  // namespace coppice
