// What a sample weighs that waits: thousands may, and a request of a few KiB must not bring hundreds of MiB.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/mailbox.h"
#include "sampling/logprobs.h"
#include "sampling/make_generation.h"
#include "text/fixtures.h"

namespace {

thread_local std::size_t allocated = 0;  // bytes, what was given back included

}  // namespace

void* operator new(std::size_t size) {
  allocated += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace coppice::sampling {
namespace {

/// A request with as much as it may have of all that samples can share.
SamplingParams heaviest() {
  SamplingParams params{.repeat_penalty = 1.1F, .logprobs = kMaxTopLogprobs};
  for (kv::Token token = 0; std::cmp_less(token, kMaxLogitBias); ++token) params.logit_bias[token] = 1;
  for (char c = 'a'; c < 'a' + 16; ++c) params.stop.emplace_back(kMaxStopBytes, c);
  return params;
}

TEST(Weight, WaitingSamplesShareAllButAKiB) {
  std::vector<kv::Token> prompt(10000);
  std::iota(prompt.begin(), prompt.end(), 0);
  const auto shared = std::make_shared<const SharedParams>(heaviest(), test::vocabulary()->size());
  const auto bytes_of = [&](int n) {
    const std::size_t before = allocated;
    const auto samples = make_generations(test::vocabulary(), shared, n, prompt);
    EXPECT_EQ(samples.size(), static_cast<std::size_t>(n));
    return allocated - before;
  };
  bytes_of(1);  // what is made once in a process
  const std::size_t one = bytes_of(1), many = bytes_of(101);
  EXPECT_LT(many - one, 100 * std::size_t{1024});
}

// A prompt may have the tokens with the longest names there are. Alternatives are as they come.
TEST(Weight, ScoredTokensWeighWhatTheyTake) {
  const auto vocabulary = test::vocabulary();
  std::vector<kv::Token> longest(static_cast<std::size_t>(vocabulary->size()));
  std::iota(longest.begin(), longest.end(), 0);
  std::ranges::sort(longest, std::greater<>{}, [&](kv::Token t) { return vocabulary->piece(t, true).size(); });
  VocabularyScorer scorer(vocabulary);
  std::vector<float> logits(longest.size());
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = i % 1000 == 0 ? 5 : 0;
  for (const int n_top : {0, 1, 20}) {
    const auto bytes_of = [&](kv::Token next) {
      scorer.score(logits, next, n_top);  // what is made once
      const std::size_t before = allocated;
      const PromptToken token = scorer.score(logits, next, n_top);
      return sizeof(token) + allocated - before;
    };
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < 100; ++i) bytes += bytes_of(longest[i]);
    EXPECT_LE(bytes, 100 * engine::scored_weight(n_top) * sizeof(kv::Token)) << n_top;
    EXPECT_GT(bytes_of(longest.back()) * 4, engine::scored_weight(n_top) * sizeof(kv::Token)) << "nor much less";
  }
}

}  // namespace
}  // namespace coppice::sampling
