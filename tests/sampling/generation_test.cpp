// make_generations(): tokens in, text and log-probabilities out, on the real vocabulary and made-up logits.
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "sampling/make_generation.h"
#include "support/normal.h"
#include "text/fixtures.h"
#include "text/utf8_stream.h"

namespace coppice::sampling {
namespace {

using kv::Token;
using test::vocabulary;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Token kEnd = 2;        // <|im_end|>
constexpr Token kTurnBegin = 1;  // <|im_start|>: special, but no end

std::vector<Token> tokens_of(const std::string& text) {
  return vocabulary()->tokenize(text, false, false);
}

/// Logits that make a greedy sampler choose `token`.
std::vector<float> logits_for(Token token) {
  std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()), 0);
  logits[static_cast<std::size_t>(token)] = 10;
  return logits;
}

/// What a client of the stream gets, and what the stream promises at each piece.
struct Stream {
  std::string text;
  std::vector<std::string> pieces;
  std::vector<LogprobEntry> logprobs;
  std::optional<Finish> finish;
  std::size_t n_tokens = 0;

  void take(Piece piece) {
    EXPECT_FALSE(finish) << "a piece after the end";
    EXPECT_TRUE(text::is_utf8(piece.text));
    text += piece.text;
    pieces.push_back(piece.text);
    for (LogprobEntry& entry : piece.logprobs) logprobs.push_back(std::move(entry));
    finish = piece.finish;
  }
};

std::unique_ptr<Generation> generation_of(const SamplingParams& params, int sample = 0,
                                          const std::vector<Token>& prompt = {}) {
  const auto shared = std::make_shared<const SharedParams>(params, vocabulary()->size());
  return std::move(make_generations(vocabulary(), shared, sample + 1, prompt).back());
}

SamplingParams greedy() {
  return {.temperature = 0};
}

/// Feeds tokens until the generation stops; flushes if it does not.
Stream play(const std::vector<Token>& tokens, const SamplingParams& params) {
  const auto generation = generation_of(params);
  Stream stream;
  for (const Token token : tokens) {
    std::vector<float> logits = logits_for(token);
    Piece piece = generation->next(logits);
    EXPECT_EQ(piece.token, token);
    stream.take(std::move(piece));
    ++stream.n_tokens;
    if (stream.finish) return stream;
  }
  stream.take(generation->flush());
  return stream;
}

TEST(Generation, PiecesJoinToTheText) {
  const std::string text = "Grüße, 世界! 🙂👩‍👩‍👧‍👦 done";
  const Stream stream = play(tokens_of(text), greedy());
  EXPECT_EQ(stream.text, text);
  EXPECT_FALSE(stream.finish);
  EXPECT_GT(std::ranges::count(stream.pieces, ""), 1) << "the emoji are several tokens each: some pieces are empty";
}

TEST(Generation, AnEndTokenStopsWithoutText) {
  std::vector<Token> tokens = tokens_of("Hello there");
  tokens.push_back(kEnd);
  const Stream stream = play(tokens, greedy());
  EXPECT_EQ(stream.text, "Hello there");
  EXPECT_EQ(stream.finish, Finish::kStop);
  EXPECT_EQ(stream.pieces.back(), "");
}

TEST(Generation, OtherSpecialTokensHaveNoText) {
  EXPECT_EQ(play({kTurnBegin, tokens_of("x")[0]}, greedy()).text, "x");
}

TEST(Generation, IgnoreEosNeverDrawsAnEnd) {
  SamplingParams params = greedy();
  params.ignore_eos = true;
  params.logprobs = 2;
  const auto generation = generation_of(params);
  std::vector<float> logits = logits_for(kEnd);
  logits[345] = 5;
  const Piece piece = generation->next(logits);
  EXPECT_EQ(piece.token, 345);
  EXPECT_FALSE(piece.finish);
  ASSERT_EQ(piece.logprobs.size(), 1U);
  EXPECT_EQ(piece.logprobs[0].top[0].token, kEnd) << "the raw distribution knows of no ban";
  EXPECT_EQ(piece.logprobs[0].top[0].bytes, "<|im_end|>");
}

TEST(Generation, AnEndTokenHasAnEntryOnlyIfItIsWanted) {
  for (const bool wanted : {false, true}) {
    SamplingParams params = greedy();
    params.logprobs = 1;
    params.logprobs_of_end = wanted;
    const auto generation = generation_of(params);
    std::vector<float> logits = logits_for(kEnd);
    const Piece piece = generation->next(logits);
    EXPECT_EQ(piece.finish, Finish::kStop);
    EXPECT_EQ(piece.text, "");
    ASSERT_EQ(piece.logprobs.size(), wanted ? 1U : 0U);
    if (wanted) EXPECT_EQ(piece.logprobs[0].chosen.bytes, "<|im_end|>");
  }
}

TEST(Generation, AStopTokenStopsWithoutText) {
  const auto tokens = tokens_of("one two three");
  SamplingParams params = greedy();
  params.stop_tokens = {tokens[1]};
  const Stream stream = play(tokens, params);
  EXPECT_EQ(stream.text, "one");
  EXPECT_EQ(stream.finish, Finish::kStop);
  EXPECT_EQ(stream.n_tokens, 2U);
}

TEST(Generation, NothingEndsBeforeTheFirstTokens) {
  const auto tokens = tokens_of("one two three two four");
  SamplingParams params = greedy();
  params.stop = {"two"};
  params.min_tokens = 2;
  const Stream stream = play(tokens, params);
  EXPECT_EQ(stream.text, "one two three ") << "the first \"two\" is among them";
  EXPECT_EQ(stream.finish, Finish::kStop);
}

TEST(Generation, SaysWhichStopWasMet) {
  SamplingParams params = greedy();
  params.stop = {"four", "two"};
  const auto generation = generation_of(params);
  std::string met;
  for (const Token token : tokens_of("one two")) {
    std::vector<float> logits = logits_for(token);
    met = generation->next(logits).stop;
  }
  EXPECT_EQ(met, "two");
}

TEST(Generation, SpecialTokensHaveATextIfWanted) {
  SamplingParams params = greedy();
  params.show_special = true;
  EXPECT_EQ(play({kTurnBegin}, params).text, "<|im_start|>");
}

TEST(Generation, AStopStringOverTokenBorders) {
  SamplingParams params = greedy();
  params.stop = {" fox jum"};
  const Stream stream = play(tokens_of("The quick brown fox jumps over"), params);
  EXPECT_EQ(stream.text, "The quick brown");
  EXPECT_EQ(stream.finish, Finish::kStop);
  EXPECT_LT(stream.n_tokens, tokens_of("The quick brown fox jumps over").size());
}

TEST(Generation, AStopStringOfManyByteCharacters) {
  SamplingParams params = greedy();
  params.stop = {"🙂!"};
  EXPECT_EQ(play(tokens_of("a🙂b🙂!c"), params).text, "a🙂b");
}

TEST(Generation, TextHeldForAStopComesOutAtTheEnd) {
  SamplingParams params = greedy();
  params.stop = {"ab very long stop"};
  std::vector<Token> tokens = tokens_of("xab very");
  EXPECT_EQ(play(tokens, params).text, "xab very");
  tokens.push_back(kEnd);
  EXPECT_EQ(play(tokens, params).text, "xab very");
}

TEST(Generation, HalfACharacterAtTheEndBecomesTheReplacement) {
  std::vector<Token> tokens = tokens_of("a𝔘");
  ASSERT_GT(tokens.size(), 2U);
  tokens.pop_back();
  EXPECT_EQ(play(tokens, greedy()).text, "a\xEF\xBF\xBD");
  tokens.push_back(kEnd);
  EXPECT_EQ(play(tokens, greedy()).text, "a\xEF\xBF\xBD");
}

TEST(Generation, RefusesToGoOnAfterTheEnd) {
  const auto generation = generation_of(greedy());
  std::vector<float> logits = logits_for(kEnd);
  EXPECT_EQ(generation->next(logits).finish, Finish::kStop);
  EXPECT_THROW(generation->next(logits), std::logic_error);
  EXPECT_EQ(generation->flush().text, "");
  const auto flushed = generation_of(greedy());
  flushed->flush();
  EXPECT_THROW(flushed->next(logits), std::logic_error);
}

TEST(Generation, ParametersAreChecked) {
  EXPECT_THROW(generation_of({.top_p = 2}), ParamError);
}

TEST(Generation, APaddedHeadIsCutToTheVocabulary) {
  SamplingParams params = greedy();
  params.logprobs = 1;
  const auto generation = generation_of(params);
  std::vector<float> logits = logits_for(345);
  logits.resize(logits.size() + 64, 1000);
  const Piece piece = generation->next(logits);
  EXPECT_EQ(piece.token, 345);
  EXPECT_GT(piece.logprobs.at(0).chosen.logprob, -4);
  EXPECT_EQ(piece.logprobs.at(0).top.at(0).token, 345);
}

std::vector<Token> draw(std::optional<std::uint64_t> seed, int sample, const std::vector<float>& logits) {
  const auto generation = generation_of({.seed = seed, .ignore_eos = true}, sample);
  std::vector<float> row = logits;
  std::vector<Token> tokens;
  for (int i = 0; i < 20; ++i) tokens.push_back(generation->next(row).token);
  EXPECT_EQ(row, logits);
  return tokens;
}

TEST(Generation, SampleIDrawsAsSeedPlusI) {
  const std::vector<float> flat(static_cast<std::size_t>(vocabulary()->size()), 0);
  EXPECT_EQ(draw(7, 0, flat), draw(7, 0, flat));
  EXPECT_EQ(draw(7, 3, flat), draw(10, 0, flat));
  EXPECT_NE(draw(7, 0, flat), draw(7, 1, flat));
  EXPECT_NE(draw(std::nullopt, 0, flat), draw(std::nullopt, 0, flat));
}

// Who is told what a device drew brings the same pieces as who draws.
TEST(Generation, TakesATokenThatADeviceDrew) {
  std::mt19937_64 random = test::seeded_random();
  test::Normal normal(0, 4);
  std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()));
  int pieces = 0, stopped = 0;
  for (int round = 0; round < 24; ++round) {
    SamplingParams params{.temperature = 1.5F, .top_k = 30, .repeat_penalty = 1.2F, .seed = random()};
    params.logprobs = round % 3 - 1;
    params.stop = {"th", "e "};
    params.logit_bias = {{vocabulary()->end_tokens()[0], 6}};
    const auto one = generation_of(params), other = generation_of(params);
    EXPECT_EQ(other->needs(), params.logprobs < 0 ? Generation::Needs::kToken : Generation::Needs::kLogprobs);
    bool ended = false;
    for (int n = 0; !ended && n < 30; ++n) {
      for (float& x : logits) x = normal(random);
      EXPECT_EQ(other->spec().counter, other->spec().counter) << "asking changes nothing";
      const Piece drawn = one->next(logits);
      const Piece taken = other->take(drawn.token, params.logprobs < 0 ? std::span<const float>() : logits);
      EXPECT_EQ(taken.token, drawn.token);
      EXPECT_EQ(taken.text, drawn.text);
      EXPECT_EQ(taken.finish, drawn.finish);
      EXPECT_EQ(taken.stop, drawn.stop);
      ASSERT_EQ(taken.logprobs.size(), drawn.logprobs.size());
      for (std::size_t i = 0; i < taken.logprobs.size(); ++i)
        EXPECT_EQ(taken.logprobs[i].chosen.logprob, drawn.logprobs[i].chosen.logprob);
      ++pieces;
      ended = drawn.finish.has_value();
    }
    if (!ended) continue;
    ++stopped;
    EXPECT_THROW(other->spec(), std::logic_error);
  }
  EXPECT_GT(pieces, 60);
  EXPECT_GT(stopped, 3);
}

TEST(Generation, LogprobsAreOfTheRawDistribution) {
  std::mt19937_64 random = test::seeded_random();
  test::Normal normal(0, 4);
  SamplingParams params{.temperature = 1.7F, .top_k = 50, .repeat_penalty = 1.3F, .frequency_penalty = 1};
  params.logit_bias = {{100, 30}, {200, -50}};
  params.logprobs = 5;
  params.ignore_eos = true;
  const std::vector<Token> prompt = {5, 6, 7};
  const auto generation = generation_of(params, 0, prompt);
  std::vector<float> logits(static_cast<std::size_t>(vocabulary()->size()));
  std::vector<Token> drawn;
  std::vector<LogprobEntry> entries;
  std::vector<std::vector<float>> rows;
  for (int step = 0; step < 20; ++step) {
    for (float& x : logits) x = normal(random);
    rows.push_back(logits);
    Piece piece = generation->next(logits);
    drawn.push_back(piece.token);
    for (LogprobEntry& e : piece.logprobs) entries.push_back(std::move(e));
  }
  for (LogprobEntry& e : generation->flush().logprobs) entries.push_back(std::move(e));
  ASSERT_EQ(entries.size(), drawn.size());
  for (std::size_t step = 0; step < rows.size(); ++step) {
    const std::vector<float>& row = rows[step];
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x));
    const auto logprob = [&](Token t) { return static_cast<double>(row[static_cast<std::size_t>(t)]) - std::log(sum); };
    EXPECT_EQ(entries[step].chosen.token, drawn[step]);
    EXPECT_NEAR(static_cast<double>(entries[step].chosen.logprob), logprob(drawn[step]), 1e-4);
    EXPECT_EQ(entries[step].chosen.bytes, vocabulary()->piece(drawn[step], true));
    ASSERT_EQ(entries[step].top.size(), 5U);
    std::vector<float> sorted = row;
    std::ranges::sort(sorted, std::greater<>());
    for (std::size_t i = 0; i < 5; ++i) {
      const TokenLogprob& top = entries[step].top[i];
      EXPECT_EQ(row[static_cast<std::size_t>(top.token)], sorted[i]);
      EXPECT_NEAR(static_cast<double>(top.logprob), logprob(top.token), 1e-4);
    }
  }
}

TEST(Generation, LogprobsWaitForTheirText) {
  SamplingParams params = greedy();
  params.logprobs = 0;
  params.stop = {"!?"};
  const std::vector<Token> tokens = tokens_of("a!b");
  ASSERT_EQ(tokens.size(), 3U);
  const auto generation = generation_of(params);
  std::vector<std::pair<std::string, std::size_t>> got;
  for (const Token token : tokens) {
    std::vector<float> logits = logits_for(token);
    const Piece piece = generation->next(logits);
    got.emplace_back(piece.text, piece.logprobs.size());
    for (const LogprobEntry& entry : piece.logprobs) EXPECT_THAT(entry.top, IsEmpty());
  }
  using P = std::pair<std::string, std::size_t>;
  EXPECT_THAT(got, ElementsAre(P("a", 1), P("", 0), P("!b", 2)));
}

TEST(Generation, LogprobsWaitForTheWholeCharacter) {
  SamplingParams params = greedy();
  params.logprobs = 0;
  const std::vector<Token> tokens = tokens_of("𝔘");
  ASSERT_GE(tokens.size(), 2U);
  const auto generation = generation_of(params);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::vector<float> logits = logits_for(tokens[i]);
    const Piece piece = generation->next(logits);
    const bool last = i + 1 == tokens.size();
    EXPECT_EQ(piece.text, last ? "𝔘" : "");
    EXPECT_EQ(piece.logprobs.size(), last ? tokens.size() : 0);
  }
}

TEST(Generation, TokensOfTheStopHaveNoLogprobs) {
  SamplingParams params = greedy();
  params.logprobs = 0;
  params.stop = {"brown fox"};
  const Stream stream = play(tokens_of("The quick brown fox jumps"), params);
  EXPECT_EQ(stream.text, "The quick ");
  std::string bytes;
  for (const LogprobEntry& entry : stream.logprobs) bytes += entry.chosen.bytes;
  EXPECT_EQ(bytes, "The quick brown") << "the token that the stop cut in two has one";
}

/// Random tokens, invalid bytes among them, and stops cut out of their own text.
TEST(Generation, RandomTokensStreamAsTheWholeTextSays) {
  std::mt19937_64 random = test::seeded_random();
  int n_stopped = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<Token> tokens;
    for (std::size_t n = 1 + test::pick_below(random, 12); n > 0; --n) {
      // The first ids are single bytes: half characters and worse.
      const std::size_t range = test::pick_below(random, 3) == 0 ? 280 : 49152;
      const auto token = static_cast<Token>(test::pick_below(random, range));
      if (!vocabulary()->is_end(token)) tokens.push_back(token);
    }
    const std::string whole = text::to_utf8(vocabulary()->detokenize(tokens));
    SamplingParams params = greedy();
    params.logprobs = 1;
    if (!whole.empty() && test::pick_below(random, 3) > 0) {
      const std::size_t at = test::pick_below(random, whole.size());
      const std::string stop = whole.substr(at, 1 + test::pick_below(random, 6));
      if (text::is_utf8(stop)) params.stop.push_back(stop);
    }
    const Stream stream = play(tokens, params);
    const std::size_t cut = params.stop.empty() ? std::string::npos : whole.find(params.stop[0]);
    ASSERT_EQ(stream.text, whole.substr(0, cut)) << "round " << round;
    ASSERT_EQ(stream.finish.has_value(), cut != std::string::npos);
    if (cut == std::string::npos) {
      ASSERT_EQ(stream.logprobs.size(), tokens.size());
    } else {
      ++n_stopped;
    }
    for (std::size_t i = 0; i < stream.logprobs.size(); ++i) {
      ASSERT_EQ(stream.logprobs[i].chosen.token, tokens[i]) << "entries in the order of the tokens";
    }
  }
  EXPECT_GT(n_stopped, 50);
}

}  // namespace
}  // namespace coppice::sampling
