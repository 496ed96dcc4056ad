// Embeddings of real texts, by the engine, against libllama's: with weights in f32, where only real mistakes show, and
// of the quantised file, where the measure is libllama's own spread.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "executor/ggml/ggml_executor.h"
#include "model/model.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"
#include "support/libllama.h"

namespace coppice {
namespace {

using engine::Pooling;
using test::Libllama;
using Tokens = std::vector<kv::Token>;

/// An engine that embeds prompts.
class Embedder {
 public:
  Embedder(executor::Executor& executor, int step_tokens)
      : n_embd_(static_cast<std::size_t>(executor.info().n_embd)),
        engine_(kv::Cache(cache_config(executor.info(), step_tokens)), executor,
                {.max_batch = 4, .step_tokens = step_tokens},
                [this](std::vector<engine::Event>&& events) { take(std::move(events)); }) {}

  std::vector<float> embed(const Tokens& prompt, Pooling pooling) {
    embedding_.clear();
    engine::Request request{.id = engine_.next_id(), .prompt = prompt, .max_tokens = 0};
    request.pooling = {pooling, std::vector<double>(n_embd_)};
    request.samples.push_back(std::make_unique<Nothing>());
    engine_.submit(std::move(request));
    while (engine_.step()) {
    }
    return embedding_;
  }

  std::int32_t cached = 0;  ///< tokens of the last prompt

 private:
  class Nothing final : public sampling::Generation {
   public:
    sampling::Piece next(std::span<float>) override { throw std::logic_error("nothing is to be generated"); }
    sampling::Piece flush() override { return {}; }
  };

  static kv::CacheConfig cache_config(const executor::ExecutorInfo& info, int max_extend) {
    return {.block_size = info.block_size,
            .num_blocks = info.num_blocks,
            .bytes_per_block = info.bytes_per_block,
            .groups = info.groups,
            .max_extend = max_extend};
  }

  void take(std::vector<engine::Event>&& events) {
    for (engine::Event& event : events) {
      if (auto* refused = std::get_if<engine::Refused>(&event.news)) ADD_FAILURE() << refused->message;
      if (auto* embedding = std::get_if<engine::Embedding>(&event.news)) embedding_ = std::move(embedding->values);
      if (event.ended) cached = event.ended->cached_tokens;
    }
  }

  std::size_t n_embd_;
  std::vector<float> embedding_;
  engine::Engine engine_;
};

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * double{b[i]};
    aa += double{a[i]} * double{a[i]};
    bb += double{b[i]} * double{b[i]};
  }
  return ab / std::sqrt(aa * bb);
}

/// The parameter is the environment's name of the model's file.
class EmbeddingTest : public testing::TestWithParam<const char*> {
 protected:
  /// Texts of these lengths, from different places.
  static std::vector<Tokens> texts(const Libllama& l, std::initializer_list<std::ptrdiff_t> lengths) {
    std::ifstream in(std::string(COPPICE_FIXTURES) + "/coppice_woods.txt");
    const Tokens all = l.tokenize(std::string(std::istreambuf_iterator<char>(in), {}));
    std::vector<Tokens> texts;
    std::ptrdiff_t at = 0;
    for (const std::ptrdiff_t n : lengths) {
      if (std::ssize(all) < at + n) throw std::runtime_error("the fixture is too short");
      texts.emplace_back(all.begin() + at, all.begin() + at + n);
      at += 30;
    }
    return texts;
  }

  static std::unique_ptr<executor::Executor> load(const std::string& path) {
    executor::GgmlOptions o;
    o.kv_bytes = std::size_t{96} << 20;
    o.n_threads = 1;
    return executor::load_ggml_executor(model::load_model(path), o, {});
  }
};

constexpr std::pair<Pooling, Libllama::Pooling> kPoolings[] = {{Pooling::kLast, Libllama::Pooling::kLast},
                                                               {Pooling::kMean, Libllama::Pooling::kMean}};
const char* name_of(Pooling pooling) {
  return pooling == Pooling::kLast ? "last" : "mean";
}

INSTANTIATE_TEST_SUITE_P(Models, EmbeddingTest, testing::Values("COPPICE_MODEL", "COPPICE_GEMMA3"),
                         [](const auto& info) { return std::string(info.param); });

// The longest text is longer than Gemma's window. Neither chunks nor the cache change what comes.
TEST_P(EmbeddingTest, F32WeightsAgreeWithLibllama) {
  constexpr double kLeast = 0.9999;  // the tree kernel rounds a little more than libllama's
  const std::string path = test::f32_model_path(GetParam());
  const auto executor = load(path);
  const Libllama weights(path, false, 1);  // each pooling's has the same
  for (const auto& [ours, theirs] : kPoolings) {
    Libllama l(path, false, 1, false, theirs);
    double worst = 1;
    const auto some = ours == Pooling::kLast ? texts(l, {1, 5, 90}) : texts(l, {5, 560, 90});
    for (const Tokens& text : some) {
      const auto reference = l.embed(text), got = Embedder(*executor, 512).embed(text, ours);
      ASSERT_EQ(got.size(), reference.size());
      worst = std::min(worst, cosine(got, reference));
      EXPECT_LT(test::relative_rms(got, reference), 0.02) << "of their length, before it is made 1";
    }
    fmt::print("{}, f32 weights, {}: least cosine {:.7f}\n", GetParam(), name_of(ours), worst);
    EXPECT_GT(worst, kLeast) << name_of(ours);

    const Tokens text = texts(l, {90}).front();
    const auto reference = l.embed(text);
    Embedder chunked(*executor, 40);
    for (const std::int32_t cached : {0, ours == Pooling::kLast ? 89 : 0}) {
      EXPECT_GT(cosine(chunked.embed(text, ours), reference), kLeast) << name_of(ours);
      EXPECT_EQ(chunked.cached, cached);
    }
  }
}

// What either side loses by rounding rows to 8 or 16 bits is told by the same weights in f32.
TEST_P(EmbeddingTest, QuantisedWeightsAreAsNearToExactOnesAsLibllama) {
  const std::string path = test::model_path(GetParam()), copy = test::f32_model_path(GetParam());
  const auto executor = load(path);
  const Libllama exact_weights(copy, false, 1), quantised_weights(path, false, 1);  // each pooling's has the same
  for (const auto& [ours, theirs] : kPoolings) {
    Libllama exact(copy, false, 1, false, theirs), quantised(path, false, 1, false, theirs);
    double away = 0, libllamas = 0;
    for (const Tokens& text : texts(exact, {40, 90})) {
      const auto reference = exact.embed(text);
      away += test::relative_rms(Embedder(*executor, 512).embed(text, ours), reference);
      libllamas += test::relative_rms(quantised.embed(text), reference);
    }
    fmt::print("{}, quantised, {}: {:.5f} from f32, libllama {:.5f}\n", GetParam(), name_of(ours), away / 2,
               libllamas / 2);
    EXPECT_LE(away, 1.5 * libllamas) << name_of(ours);
  }
}

}  // namespace
}  // namespace coppice
