// Samples that follow a grammar, on the real vocabulary: masks, ends, log-probabilities, and a grammar that begins
// late.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "grammar/compiler.h"
#include "sampling/make_generation.h"
#include "support/normal.h"
#include "text/fixtures.h"

namespace coppice::sampling {
namespace {

using kv::Token;
using test::vocabulary;
using ::testing::MatchesRegex;

std::shared_ptr<const grammar::Grammar> compiled(grammar::Kind kind, const std::string& text) {
  static const grammar::Compiler compiler([] {
    grammar::Words words;
    for (Token token = 0; token < vocabulary()->size(); ++token) words.pieces.push_back(vocabulary()->piece(token));
    words.ends.assign(vocabulary()->end_tokens().begin(), vocabulary()->end_tokens().end());
    return words;
  }());
  return compiler.compile({.kind = kind, .text = text});
}

SamplingParams following(const std::string& regex, float temperature = 1) {
  SamplingParams params{.temperature = temperature, .seed = 5};
  params.grammar.grammar = compiled(grammar::Kind::kRegex, regex);
  return params;
}

std::vector<std::unique_ptr<Generation>> generations(const SamplingParams& params, int n = 1) {
  return make_generations(vocabulary(), std::make_shared<const SharedParams>(params, vocabulary()->size()), n, {});
}

struct Result {
  std::string text;
  std::vector<LogprobEntry> logprobs;
  std::optional<Finish> finish;
};

/// Noise for logits: whatever is drawn comes from the mask.
Result play(Generation& generation, int most = 200, unsigned seed = 7) {
  std::mt19937 random(seed);
  test::Normal noise(0, 3);
  Result result;
  for (int i = 0; i < most && !result.finish; ++i) {
    std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()));
    for (float& logit : logits) logit = noise(random);
    const std::vector<float> before = logits;
    Piece piece = generation.next(logits);
    EXPECT_EQ(logits, before) << "log-probabilities are read from them";
    result.text += piece.text;
    for (auto& entry : piece.logprobs) result.logprobs.push_back(std::move(entry));
    result.finish = piece.finish;
  }
  if (!result.finish) result.text += generation.flush().text;
  return result;
}

TEST(GrammarGeneration, FollowsItGreedilyAndAtRandom) {
  for (const float temperature : {0.0F, 1.0F, 3.0F}) {
    SamplingParams params = following("[a-c]{3}-[0-9]+\\.", temperature);
    for (const bool filtered : {false, true}) {
      if (filtered) params.top_k = 40, params.top_p = 0.9F, params.min_p = 0.01F;
      const Result result = play(*generations(params).front(), 2000);
      EXPECT_THAT(result.text, MatchesRegex("[a-c][a-c][a-c]-[0-9]+\\."));
      EXPECT_EQ(result.finish, Finish::kStop);
    }
  }
}

TEST(GrammarGeneration, SamplesPartWays) {
  const auto all = generations(following("(yes|no|maybe)"), 8);
  std::set<std::string> texts;
  unsigned seed = 0;
  for (const auto& one : all) texts.insert(play(*one, 200, ++seed).text);
  EXPECT_GT(texts.size(), 1U);
  for (const std::string& text : texts) EXPECT_THAT(text, MatchesRegex("yes|no|maybe"));
}

TEST(GrammarGeneration, KeepsPenaltiesBiasesAndStops) {
  SamplingParams params = following("[ab]{20}", 0);
  params.repeat_penalty = 1.3F;
  params.presence_penalty = 1;
  params.logit_bias[vocabulary()->tokenize("z", false, false).front()] = 100;
  EXPECT_THAT(play(*generations(params).front()).text, MatchesRegex("[ab]+"));
  params.stop = {"b"};
  const Result stopped = play(*generations(params).front());
  EXPECT_THAT(stopped.text, MatchesRegex("a*"));
  EXPECT_EQ(stopped.finish, Finish::kStop);
}

TEST(GrammarGeneration, LogprobsAreOfTheRawDistribution) {
  SamplingParams params = following("(a|b)", 0);
  params.logprobs = 3;
  const Result result = play(*generations(params).front());
  ASSERT_EQ(result.logprobs.size(), 1U);
  EXPECT_EQ(result.logprobs[0].chosen.bytes, result.text);
  EXPECT_LT(result.logprobs[0].chosen.logprob, result.logprobs[0].top[0].logprob) << "the likeliest was not allowed";
}

TEST(GrammarGeneration, BeginsWhereTheReasoningEnds) {
  SamplingParams params = following("[0-9]{4}");
  params.grammar.after = "</think>";
  const auto generation = generations(params);
  for (const Token token : vocabulary()->tokenize("I wonder.</think>", false, false)) {
    std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), -1000);
    logits[static_cast<std::size_t>(token)] = 0;
    EXPECT_EQ(generation.front()->next(logits).token, token);
  }
  const Result result = play(*generation.front());
  EXPECT_THAT(result.text, MatchesRegex("[0-9][0-9][0-9][0-9]"));
  EXPECT_EQ(result.finish, Finish::kStop);
}

/// What a grammar begins with is a part of the thoughts, if these come first: a mark of calls of which the model only
/// thinks.
TEST(GrammarGeneration, DoesNotBeginInsideOfThoughts) {
  struct Case {
    bool open;
    const char* before;  ///< the grammar
  };
  const Case cases[] = {{true, "I may <call> or not. <call></t> Now: <call>"},
                        {false, "\n<t>I may <call></t><call>"},
                        {false, "No thoughts: <call>"},
                        {false, "<<call>"},
                        {true, "</t><t>once <call>"}};
  for (const Case& c : cases) {
    SamplingParams params = following("[0-9]{4}");
    params.grammar.after = "<call>";
    params.grammar.skipped = {"<t>", "</t>", c.open};
    const auto generation = generations(params);
    for (const Token token : vocabulary()->tokenize(c.before, false, false)) {
      std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), -1000);
      logits[static_cast<std::size_t>(token)] = 0;
      EXPECT_EQ(generation.front()->next(logits).token, token) << c.before;
    }
    EXPECT_THAT(play(*generation.front()).text, MatchesRegex("[0-9][0-9][0-9][0-9]")) << c.before;
  }
}

TEST(GrammarGeneration, ReasoningMayBeLeftOut) {
  SamplingParams params = following("[0-9]{4}");
  const Token opens = vocabulary()->tokenize("I", false, false).front();
  params.grammar.after = "</think>";
  params.grammar.opens = opens;
  const auto without = generations(params);
  std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), -1000);
  logits[static_cast<std::size_t>(opens)] =
      -2000;  // the model would rather say what the grammar wants, or anything else
  logits[static_cast<std::size_t>(vocabulary()->tokenize("z", false, false).front())] = 0;
  const Piece first = without.front()->next(logits);
  EXPECT_THAT(first.text + play(*without.front()).text, MatchesRegex("[0-9][0-9][0-9][0-9]"));

  const auto with = generations(params);
  for (const Token token : vocabulary()->tokenize("I wonder.</think>", false, false)) {
    std::vector<float> forced(static_cast<std::size_t>(vocabulary()->size()), -1000);
    forced[static_cast<std::size_t>(token)] = 0;
    EXPECT_EQ(with.front()->next(forced).token, token);
  }
  EXPECT_THAT(play(*with.front()).text, MatchesRegex("[0-9][0-9][0-9][0-9]"));
}

TEST(GrammarGeneration, DeadEndsAreTheClientsMistake) {
  // The model's logits leave nothing of what the grammar allows.
  const auto generation = generations(following("[0-9]{4}", 0));
  std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), -std::numeric_limits<float>::infinity());
  logits[static_cast<std::size_t>(vocabulary()->tokenize("z", false, false).front())] = 0;
  EXPECT_THROW(generation.front()->next(logits), Unsatisfiable);
}

TEST(GrammarGeneration, AWholeTextEndsWhereNothingMayFollow) {
  SamplingParams params = following("1", 0);
  for (const Token end : vocabulary()->end_tokens())
    params.logit_bias.emplace(end, -std::numeric_limits<float>::infinity());
  const auto generation = generations(params);
  std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), 0);
  EXPECT_EQ(generation.front()->next(logits).text, "1");
  const Piece last = generation.front()->next(logits);
  EXPECT_EQ(last.finish, Finish::kStop);
  EXPECT_EQ(last.token, -1) << "a refused token must not be counted";
}

TEST(GrammarGeneration, AnAmbiguousGrammarIsTheClientsMistake) {
  SamplingParams params;
  params.temperature = 0;
  params.grammar.grammar = compiled(grammar::Kind::kGbnf, R"(root ::= root root root | "a")");
  const auto generation = generations(params);
  const Token a = vocabulary()->tokenize("a", false, false).front();
  EXPECT_THROW(
      for (int i = 0; i < 100000; ++i) {
        std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), -1000);
        logits[static_cast<std::size_t>(a)] = 0;
        generation.front()->next(logits);
      },
      Unsatisfiable);
}

TEST(GrammarGeneration, EndTokensCannotBeIgnored) {
  SamplingParams params = following("a");
  params.ignore_eos = true;
  EXPECT_THROW(generations(params), ParamError);
}

// What is drawn has these frequencies: the one thing that they promise.
TEST(DrawnProbabilities, AreThoseOfTheDrawsBehindMaskAndFilters) {
  SamplingParams params = following("[abc]x", 0.7F);
  params.top_k = 2;
  params.logprobs = 5;
  params.logprobs_of_drawn = true;
  params.logit_bias[vocabulary()->tokenize("a", false, false).front()] = 0.5F;
  std::map<Token, double> told, drawn;
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    params.seed = static_cast<std::uint64_t>(i);
    std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), 0);
    for (const char* text : {"b", "c"})
      logits[static_cast<std::size_t>(vocabulary()->tokenize(text, false, false).front())] = 0.2F;
    const Piece piece = generations(params).front()->next(logits);
    ASSERT_EQ(piece.logprobs.size(), 1U);
    const LogprobEntry& entry = piece.logprobs.front();
    EXPECT_EQ(entry.chosen.token, piece.token);
    EXPECT_EQ(entry.top.size(), 2U) << "top_k leaves no more, whatever was asked for";
    double sum = 0;
    for (const TokenLogprob& t : entry.top) sum += told[t.token] = std::exp(static_cast<double>(t.logprob));
    EXPECT_NEAR(sum, 1, 1e-5);
    EXPECT_FLOAT_EQ(std::exp(entry.chosen.logprob), static_cast<float>(told[piece.token]));
    drawn[piece.token] += 1.0 / kRounds;
  }
  ASSERT_EQ(told.size(), 2U);
  // Five standard deviations of a frequency.
  for (const auto& [token, p] : told) EXPECT_NEAR(drawn[token], p, 5 * std::sqrt(p * (1 - p) / kRounds)) << token;
}

/// A text that only looks like thoughts, as in a string of a call's arguments, isn't ended where the grammar wants
/// something else.
TEST(Grammar, GoesBeforeABudgetOfThoughts) {
  SamplingParams params = following("say <t>yes");
  const auto end = vocabulary()->tokenize("</t>", false, true);
  params.thoughts = {.budget = 0, .begin = "<t>", .end = "</t>", .close = end, .last = end};
  EXPECT_EQ(play(*generations(params).front()).text, "say <t>yes");
}

}  // namespace
}  // namespace coppice::sampling
