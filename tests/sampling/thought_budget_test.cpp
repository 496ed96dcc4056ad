// Thoughts that are bounded: against a model that replays the whole text after each token, and as samples see them.
#include "sampling/thought_budget.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sampling/make_generation.h"
#include "support/normal.h"
#include "text/fixtures.h"

namespace coppice::sampling {
namespace {

using kv::Token;
using test::vocabulary;

/// What a budget says after these pieces, each whole, told from all of them. The end is "</t>", a token for each
/// letter.
bool forces(const std::vector<std::string>& pieces, bool open, int budget) {
  std::string text;
  std::size_t i = 0;
  if (!open) {
    for (;; ++i) {
      const auto said = text.substr(std::min(text.find_first_not_of(' '), text.size()));
      if (said.starts_with("<t>")) {
        text = said.substr(3);
        break;
      }
      if (!std::string("<t>").starts_with(said) || i == pieces.size()) return false;
      text += pieces[i];
    }
  }
  if (text.contains("</t>")) return false;
  int used = 0;
  for (; used < budget; ++used, ++i) {
    if (i == pieces.size()) return false;
    text += pieces[i];
    if (text.contains("</t>")) return false;
  }
  return i + 4 > pieces.size();  // four forced tokens close it
}

TEST(ThoughtBudget, IsWhatTheWholeTextSays) {
  const char* given = std::getenv("COPPICE_SEED");
  const unsigned seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : 17;
  SCOPED_TRACE("COPPICE_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::string> words = {"<t>", "<", "t>", "</t>", "</", "a", " ", "<t>a", "b</t>c", "/", "t"};
  const std::string end = "</t>";
  for (int round = 0; round < 20000; ++round) {
    const ThoughtParams params{.budget = static_cast<std::int32_t>(random() % 6),
                               .begin = "<t>",
                               .end = end,
                               .open = random() % 2 == 0,
                               .close = {'<', '/', 't', '>'}};
    ThoughtBudget budget(params);
    std::vector<std::string> pieces;
    for (int i = 0; i < 16; ++i) {
      const auto forced = budget.forced();
      ASSERT_EQ(forced.has_value(), forces(pieces, params.open, params.budget)) << "round " << round;
      pieces.push_back(forced ? std::string(1, static_cast<char>(*forced)) : words[random() % words.size()]);
      budget.take(-1, pieces.back(), true);
    }
  }
}

/// Channels: thoughts may come behind other parts, and again; all count.
TEST(ThoughtBudget, CountsThoughtsThatComeAgain) {
  const ThoughtParams params{.budget = 3, .begin = " <t>", .end = "</t>", .open = false, .close = {1}, .last = {2, 3}};
  ThoughtBudget budget(params);
  const auto take = [&](std::initializer_list<const char*> pieces) {
    for (const char* piece : pieces) {
      EXPECT_FALSE(budget.forced()) << piece;
      budget.take(-1, piece, true);
    }
  };
  const auto forced = [&](Token token) {
    EXPECT_EQ(budget.forced(), token);
    budget.take(-1, "</t>", true);
  };
  take({"said", "<t", ">", "a", "</t>", "more", "<t>", "b"});
  forced(1);
  take({"and", " <t>"});
  forced(2);
  forced(3);
  take({"<t>"});
  forced(2);
}

/// Behind the end one of some ways, until it is told which.
TEST(ThoughtBudget, LeavesTheChoiceBetweenWays) {
  const ThoughtParams params{.budget = 1,
                             .begin = "<t>",
                             .end = "</t>",
                             .open = true,
                             .close = {1, 2},
                             .last = {9},
                             .ways = {{3, 4, 5}, {3, 6}, {7}}};
  for (const std::vector<Token>& way : params.ways) {
    ThoughtBudget budget(params);
    const auto take = [&](Token token) { budget.take(token, "a", true); };
    take(8);
    EXPECT_TRUE(budget.choice().empty());
    take(*budget.forced());
    take(*budget.forced());
    for (std::size_t i = 0; i < way.size(); ++i) {
      EXPECT_FALSE(budget.forced());
      EXPECT_EQ(budget.choice(), i == 0   ? (std::vector<Token>{3, 7})
                                 : i == 1 ? (std::vector<Token>{4, 6})
                                          : std::vector<Token>{5});
      take(way[i]);
    }
    EXPECT_TRUE(budget.choice().empty());
    budget.take(-1, "<t>", true);
    EXPECT_EQ(budget.forced(), 9);
  }
}

TEST(ThoughtBudget, ACharacterIsNotCutInTwo) {
  const ThoughtParams params{.budget = 1, .begin = "<t>", .end = "</t>", .open = true, .close = {1}};
  ThoughtBudget budget(params);
  budget.take(-1, "\xe2", false);
  EXPECT_FALSE(budget.forced());
  budget.take(-1, "\x82", false);
  EXPECT_FALSE(budget.forced());
  budget.take(-1, "\xac", true);
  EXPECT_EQ(budget.forced(), 1);
  ThoughtBudget endless(params);
  for (int i = 0; i < 5; ++i) endless.take(-1, "\xe2", false);
  EXPECT_EQ(endless.forced(), 1);
}

SamplingParams thinking(int budget) {
  return {.temperature = 1,
          .seed = 3,
          .logprobs = 2,
          .thoughts = {.budget = budget,
                       .begin = "<think>",
                       .end = "</think>",
                       .open = true,
                       .close = vocabulary()->tokenize("</think>", false, true)}};
}

std::unique_ptr<Generation> bounded_sample(const SamplingParams& params) {
  return std::move(
      make_generations(vocabulary(), std::make_shared<const SharedParams>(params, vocabulary()->size()), 1, {})
          .front());
}

/// So many tokens; by spec() and take(), what a device does, every spec that allows one token drawn as that.
std::vector<Piece> draw(Generation& generation, int n) {
  std::mt19937 random(5);
  test::Normal noise(0, 3);
  std::vector<Piece> pieces;
  for (int i = 0; i < n; ++i) {
    std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()));
    for (float& logit : logits) logit = noise(random);
    pieces.push_back(generation.next(logits));
    if (pieces.back().finish) break;
  }
  return pieces;
}

TEST(ThoughtBudget, SamplesEndTheirThoughtsThere) {
  const auto close = vocabulary()->tokenize("</think>", false, true);
  const auto free = draw(*bounded_sample(thinking(-1)), 30);
  for (const int budget : {0, 1, 5}) {
    const auto bounded = draw(*bounded_sample(thinking(budget)), 30);
    ASSERT_GE(bounded.size(), budget + close.size());
    std::size_t at = 0;
    for (; at < static_cast<std::size_t>(budget); ++at) EXPECT_EQ(bounded[at].token, free[at].token);
    std::size_t entries = 0;
    for (const auto& piece : bounded) entries += piece.logprobs.size();
    EXPECT_GT(entries, 0U) << "forced tokens have log-probabilities, too";
    while (at < bounded.size() && bounded[at].token != close.front()) ++at;  // a character may have to end
    ASSERT_LE(at, static_cast<std::size_t>(budget) + 4);
    for (const Token token : close) EXPECT_EQ(bounded.at(at++).token, token);
    // The next draw takes the number that it would have taken: what was forced counts as drawn.
    if (at < bounded.size() && !bounded.back().finish && free.size() > at) EXPECT_EQ(bounded[at].token, free[at].token);
  }
}

TEST(ThoughtBudget, ADeviceIsToldWhatIsForced) {
  const auto close = vocabulary()->tokenize("</think>", false, true);
  SamplingParams params = thinking(0);
  params.logprobs = -1;
  const auto sample = bounded_sample(params);
  for (const Token token : close) {
    const SamplerSpec spec = sample->spec();
    ASSERT_LT(spec.temperature, kGreedyTemperature);
    std::vector<Token> allowed;
    for (Token t = 0; t < spec.n_vocab; ++t)
      if ((static_cast<std::uint32_t>(spec.mask[static_cast<std::size_t>(t) / 32]) >> (t % 32) & 1U) != 0)
        allowed.push_back(t);
    EXPECT_EQ(allowed, std::vector{token});
    sample->take(token, {});
  }
  EXPECT_TRUE(sample->spec().mask.empty());
}

}  // namespace
}  // namespace coppice::sampling
