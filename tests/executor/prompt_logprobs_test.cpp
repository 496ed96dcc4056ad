// Log-probabilities of a real text, by the engine on each attention backend, against libllama's logits: weights in f32,
// so that only real mistakes show. In large and small chunks, from the start and behind a cached prefix.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "executor/ggml/ggml_executor.h"
#include "model/model.h"
#include "sampling/logprobs.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"
#include "support/libllama.h"
#include "text/vocabulary.h"

namespace coppice {
namespace {

using sampling::PromptToken;
using Tokens = std::vector<kv::Token>;

constexpr int kTokens = 330, kShared = 300;

/// An engine that scores prompts and generates nothing.
class Scores {
 public:
  Scores(executor::Executor& executor, std::shared_ptr<const text::Vocabulary> vocabulary, int step_tokens,
         int scored_rows)
      : scorer_(std::make_shared<sampling::VocabularyScorer>(std::move(vocabulary))),
        engine_(kv::Cache(cache_config(executor.info(), step_tokens)), executor,
                {.max_batch = 4, .step_tokens = step_tokens, .scored_rows = scored_rows},
                [this](std::vector<engine::Event>&& events) { take(std::move(events)); }) {}

  std::vector<PromptToken> of(const Tokens& prompt, std::int32_t from = 1) {
    scored_.clear();
    engine::Request request{.id = engine_.next_id(), .prompt = prompt, .max_tokens = 0};
    request.scoring = {.scorer = scorer_, .from = from, .n_top = 2};
    request.samples.push_back(std::make_unique<Nothing>());
    engine_.submit(std::move(request));
    while (engine_.step()) {
    }
    return scored_;
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
      if (auto* scored = std::get_if<engine::ScoredTokens>(&event.news))
        std::ranges::move(scored->tokens, std::back_inserter(scored_));
      if (event.ended) cached = event.ended->cached_tokens;
    }
  }

  std::shared_ptr<sampling::Scorer> scorer_;
  std::vector<PromptToken> scored_;
  engine::Engine engine_;
};

class PromptLogprobsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = test::f32_model_path();
    vocabulary_ = std::make_shared<const text::Vocabulary>(test::model_path());
    std::ifstream in(std::string(COPPICE_FIXTURES) + "/coppice_woods.txt");
    text_ = vocabulary_->tokenize(std::string(std::istreambuf_iterator<char>(in), {}), true, false);
    ASSERT_GE(text_.size(), kTokens);
    text_.resize(kTokens);
    reference_.clear();
    for (test::Row& logits : test::Libllama(path_, false, 1).feed(text_, kTokens)) {
      const double max = *std::ranges::max_element(logits);
      double sum = 0;
      for (const float x : logits) sum += std::exp(double{x} - max);
      reference_.push_back({std::move(logits), max + std::log(sum)});
    }
  }
  static void TearDownTestSuite() {
    vocabulary_.reset();
    reference_.clear();
  }

  static std::unique_ptr<executor::Executor> load(const std::string& attention) {
    executor::GgmlOptions o;
    o.attention = attention;
    o.kv_bytes = std::size_t{64} << 20;
    o.n_threads = 1;
    return executor::load_ggml_executor(model::load_model(path_), o, {});
  }

  /// Logits of a row, and the logarithm of the sum of their exponentials.
  struct Reference {
    test::Row logits;
    double log_sum = 0;

    double logprob(kv::Token token) const { return double{logits[static_cast<std::size_t>(token)]} - log_sum; }
  };

  static void expect_right(const std::vector<PromptToken>& scored, std::size_t from, const std::string& what) {
    ASSERT_EQ(scored.size(), text_.size());
    double sum = 0, worst = 0, loss = 0, right_loss = 0;
    int same_rank = 0, n = 0;
    for (std::size_t i = 0; i < scored.size(); ++i) {
      const auto& [entry, rank] = scored[i];
      ASSERT_EQ(entry.chosen.token, text_[i]);
      ASSERT_EQ(rank > 0, i >= from) << i;
      if (rank == 0) continue;
      const Reference& reference = reference_[i - 1];
      const double right = reference.logprob(text_[i]), away = std::abs(double{entry.chosen.logprob} - right);
      sum += away;
      worst = std::max(worst, away);
      loss -= double{entry.chosen.logprob};
      right_loss -= right;
      ASSERT_EQ(entry.top.size(), 2U);
      EXPECT_NEAR(double{entry.top[0].logprob}, reference.logprob(entry.top[0].token), 0.1);
      if (rank <= 2) EXPECT_EQ(entry.top[static_cast<std::size_t>(rank) - 1].token, text_[i]);
      const float chosen = reference.logits[static_cast<std::size_t>(text_[i])];
      same_rank += 1 + std::ranges::count_if(reference.logits, [&](float x) { return x > chosen; }) == rank;
      ++n;
    }
    fmt::print(
        "{}: {} tokens, from libllama's mean {:.5f}, worst {:.5f}; same rank {}; perplexity {:.4f}, libllama's "
        "{:.4f}\n",
        what, n, sum / n, worst, same_rank, std::exp(loss / n), std::exp(right_loss / n));
    EXPECT_LT(sum / n, 0.01);
    EXPECT_LT(worst, 0.1);
    EXPECT_GT(same_rank, 0.8 * n);
    EXPECT_NEAR(loss / right_loss, 1, 1e-3);
  }

  static inline std::string path_;
  static inline std::shared_ptr<const text::Vocabulary> vocabulary_;
  static inline Tokens text_;
  static inline std::vector<Reference> reference_;  ///< of each token of the text
};

TEST_F(PromptLogprobsTest, AreLibllamasForEachBackendWhateverTheChunks) {
  for (const char* attention : {"tree", "gather", "dense"}) {
    const auto executor = load(attention);
    for (const auto& [step_tokens, scored_rows] : {std::pair{512, 0}, {100, 37}}) {
      Scores scores(*executor, vocabulary_, step_tokens, scored_rows);
      const std::string what = fmt::format("{}, {} tokens a step, {} scored", attention, step_tokens, scored_rows);
      expect_right(scores.of(text_), 1, what);
      EXPECT_EQ(scores.cached, 0);
      // Its blocks are there now: the match ends in mid-block, and before the row that foretells the first token.
      expect_right(scores.of(text_, kShared), kShared, what + ", behind a cached prefix");
      EXPECT_EQ(scores.cached, kShared - 1);
    }
  }
}

}  // namespace
}  // namespace coppice
