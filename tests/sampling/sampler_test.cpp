#include "sampling/sampler.h"

#include <gmock/gmock.h>
#include <llama.h>

#include <cmath>
#include <map>
#include <set>

#include "sampling/sampler_reference.h"
#include "support/normal.h"
#include "support/sanitized.h"
#include "text/fixtures.h"

namespace coppice::sampling {
namespace {

using kv::Token;

Distribution normalised(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += static_cast<double>(c.weight);
  Distribution p;
  for (const Candidate& c : candidates) p[c.token] = static_cast<double>(c.weight) / sum;
  return p;
}

std::string difference(const Distribution& a, const Distribution& b) {
  if (a.size() != b.size()) return "sizes " + std::to_string(a.size()) + " and " + std::to_string(b.size());
  for (const auto& [token, p] : a) {
    if (!b.contains(token)) return "token " + std::to_string(token) + " is missing";
    if (std::abs(b.at(token) - p) > 1e-5) return "p of token " + std::to_string(token);
  }
  return "";
}

std::vector<float> random_logits(std::mt19937_64& random, std::size_t n) {
  test::Normal normal(0, 0.5F + 3 * static_cast<float>(test::pick_below(random, 3)));
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random);
  return logits;
}

SamplingParams random_params(std::mt19937_64& random, std::size_t n_vocab) {
  const auto one_in = [&](std::size_t n) { return test::pick_below(random, n) == 0; };
  const auto between = [&](float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); };
  SamplingParams params;
  if (!one_in(3)) params.temperature = between(0.1F, 2.5F);
  if (one_in(2)) params.top_k = static_cast<int>(1 + test::pick_below(random, n_vocab + 3));
  if (one_in(2)) params.top_p = between(0.01F, 0.999F);
  if (one_in(3)) params.min_p = between(0.001F, 0.9F);
  if (one_in(3)) params.repeat_penalty = between(0.5F, 2);
  if (one_in(3)) params.frequency_penalty = between(-2, 2);
  if (one_in(3)) params.presence_penalty = between(-2, 2);
  if (one_in(3)) {
    for (int i = 0; i < 5; ++i) {
      params.logit_bias[static_cast<Token>(test::pick_below(random, n_vocab))] = between(-10, 10);
    }
  }
  return params;
}

Sampler make_sampler(const SamplingParams& params, std::uint64_t seed, const std::vector<Token>& prompt,
                     const std::vector<Token>& banned, std::int32_t n_vocab) {
  return {std::make_shared<const SamplingParams>(params), seed,
          std::make_shared<const PromptTokens>(prompt_tokens(prompt)), banned, n_vocab};
}

Sampler sampler_of(const SamplingParams& params, const std::vector<float>& logits,
                   const std::vector<Token>& prompt = {}, std::uint64_t seed = 1) {
  return make_sampler(params, seed, prompt, {}, static_cast<std::int32_t>(logits.size()));
}

// Every combination of options, on vocabularies smaller and larger than a block, after some tokens were generated.
TEST(Sampler, DistributionEqualsTheReference) {
  std::mt19937_64 random = test::seeded_random();
  constexpr int kRounds = test::kSanitized ? 1000 : 4000;
  int compared = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t n = 2 + test::pick_below(random, round % 10 == 0 ? 6000 : 300);
    std::vector<float> logits = random_logits(random, n);
    const std::vector<float> before = logits;
    const SamplingParams params = random_params(random, n);
    std::vector<Token> prompt, generated;
    for (int i = 0; i < 10; ++i) prompt.push_back(static_cast<Token>(test::pick_below(random, n)));
    Sampler sampler = sampler_of(params, logits, prompt, random());
    for (std::size_t i = test::pick_below(random, 12); i > 0; --i) generated.push_back(sampler.pick(logits).value());

    const Reference expected = reference(logits, params, prompt, generated);
    const Distribution got = normalised(sampler.distribution(logits));
    ASSERT_EQ(logits, before) << "the raw logits must stay";
    if (expected.on_the_edge) continue;
    ++compared;
    ASSERT_EQ(difference(expected.p, got), "")
        << "round " << round << ": T " << params.temperature << " k " << params.top_k << " p " << params.top_p
        << " min_p " << params.min_p << " n " << n;
  }
  EXPECT_GT(compared, kRounds * 7 / 8);
}

// llama.cpp's samplers in our order.
TEST(Sampler, FiltersEqualLlamaCpp) {
  std::mt19937_64 random = test::seeded_random();
  int compared = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<float> logits = random_logits(random, 2 + test::pick_below(random, 2000));
    SamplingParams params = random_params(random, logits.size());
    params.logit_bias.clear();
    if (reference(logits, params, {}, {}).on_the_edge) continue;
    ++compared;
    std::vector<llama_token_data> data;
    for (const float x : logits) data.push_back({static_cast<Token>(data.size()), x, 0});
    llama_token_data_array array = {data.data(), data.size(), -1, false};
    llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, llama_sampler_init_temp(params.temperature));
    if (params.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(params.top_k));
    if (params.top_p < 1) llama_sampler_chain_add(chain, llama_sampler_init_top_p(params.top_p, 1));
    if (params.min_p > 0) llama_sampler_chain_add(chain, llama_sampler_init_min_p(params.min_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(1));  // fills in the probabilities
    llama_sampler_apply(chain, &array);
    llama_sampler_free(chain);
    Distribution expected;
    for (std::size_t i = 0; i < array.size; ++i) {
      expected[array.data[i].id] = static_cast<double>(array.data[i].p);
    }
    Sampler sampler = sampler_of(params, logits);
    ASSERT_EQ(difference(expected, normalised(sampler.distribution(logits))), "") << "round " << round;
  }
  EXPECT_GT(compared, 400);
}

// Draws follow the distribution: chi-square with a fixed seed; the limit is far out (p < 1e-6), the draws are many.
TEST(Sampler, DrawsFollowTheDistribution) {
  std::mt19937_64 random(42);
  const auto check = [&](const SamplingParams& params, std::size_t n_vocab) {
    std::vector<float> logits(n_vocab, -60);
    for (std::size_t i = 0; i < 20; ++i) {
      logits[i * (n_vocab / 20)] = std::uniform_real_distribution<float>(-1, 1)(random);
    }
    const Distribution expected = reference(logits, params, {}, {}).p;
    Sampler sampler = sampler_of(params, logits, {}, 7);
    constexpr int kDraws = 50000;
    std::map<Token, int> counts;
    for (int i = 0; i < kDraws; ++i) ++counts[sampler.pick(logits).value()];
    double chi2 = 0;
    for (const auto& [token, count] : counts) ASSERT_TRUE(expected.contains(token)) << token;
    for (const auto& [token, p] : expected) {
      const double mean = p * kDraws;
      if (mean < 1e-6) continue;  // the floor of -60
      chi2 += (counts[token] - mean) * (counts[token] - mean) / mean;
    }
    EXPECT_LT(chi2, 70) << "19 degrees of freedom at most";
    EXPECT_GT(chi2, 0.5) << "too good to be drawn";
  };
  SamplingParams params;
  check(params, 1000);
  params.temperature = 0.6F;
  check(params, 5000);
  params.top_k = 12;
  check(params, 1000);
  params.top_k = 0;
  params.top_p = 0.8F;
  check(params, 1000);
  params.min_p = 0.3F;
  check(params, 20);
}

TEST(Sampler, GreedyTakesTheFirstOfEqualsAndLeavesTheGeneratorAlone) {
  SamplingParams params;
  params.temperature = 0;
  params.top_k = 5;
  std::vector<float> logits(500, 0);
  logits[400] = logits[130] = logits[131] = 2;
  Sampler sampler = sampler_of(params, logits);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sampler.pick(logits), 130);
  params.logit_bias[131] = 0.5F;
  EXPECT_EQ(sampler_of(params, logits).pick(logits), 131);
}

TEST(Sampler, PenaltiesMoveGreedyOn) {
  SamplingParams params;
  params.temperature = 0;
  params.frequency_penalty = 0.6F;
  std::vector<float> logits = {3, 2, 1};
  Sampler sampler = sampler_of(params, logits, {0, 0, 0, 0});  // OpenAI: the prompt does not count
  std::vector<Token> drawn;
  for (int i = 0; i < 6; ++i) drawn.push_back(sampler.pick(logits).value());
  EXPECT_THAT(drawn, testing::ElementsAre(0, 0, 1, 0, 1, 0));

  params = {.temperature = 0, .repeat_penalty = 2};
  EXPECT_EQ(sampler_of(params, logits, {0}).pick(logits), 1) << "repetition counts the prompt";
}

TEST(Sampler, BannedTokensAreNeverDrawn) {
  std::vector<float> logits = {0, 50, 0, 0};
  const std::vector<Token> banned = {1, 3, 99};
  Sampler sampler = make_sampler({}, 3, {}, banned, 4);
  for (int i = 0; i < 200; ++i) EXPECT_THAT(sampler.pick(logits), testing::AnyOf(0, 2));
  EXPECT_EQ(logits[1], 50);
  const std::vector<Token> all = {0, 1, 2, 3};
  EXPECT_EQ(make_sampler({}, 3, {}, all, 4).pick(logits), std::nullopt);
}

TEST(Sampler, OnlyAllowedTokensAreDrawn) {
  std::vector<float> logits = {9, 1, 8, 2, 7};
  const std::vector<float> before = logits;
  for (const float temperature : {0.0F, 5.0F}) {
    Sampler sampler = sampler_of({.temperature = temperature, .allowed_tokens = {3, 1}}, logits);
    std::set<Token> drawn;
    for (int i = 0; i < 200; ++i) drawn.insert(sampler.pick(logits).value());
    EXPECT_EQ(drawn, temperature == 0 ? std::set<Token>{3} : (std::set<Token>{1, 3}));
    EXPECT_EQ(logits, before);
  }
  Sampler none = sampler_of({.logit_bias = {{4, kNever}}, .allowed_tokens = {4}}, logits);
  EXPECT_EQ(none.pick(logits), std::nullopt);
}

TEST(Sampler, ABiasMayBarAToken) {
  std::vector<float> logits = {9, 1};
  Sampler sampler = sampler_of({.temperature = 0, .logit_bias = {{0, kNever}}}, logits);
  EXPECT_EQ(sampler.pick(logits), 1);
  EXPECT_EQ(logits[0], 9);
}

/// A word's last token is barred behind the others, of which only generated ones count.
TEST(Sampler, BadWordsAreNeverCompleted) {
  std::vector<float> logits = {1, 9, 5, 3};
  Sampler sampler = sampler_of({.temperature = 0, .bad_words = {{1, 1, 1}, {1, 1, 2}, {0}}}, logits, {1, 1});
  std::vector<Token> drawn;
  for (int i = 0; i < 6; ++i) drawn.push_back(sampler.pick(logits).value());
  EXPECT_EQ(drawn, (std::vector<Token>{1, 1, 3, 1, 1, 3}));
}

TEST(Sampler, EndsMustWait) {
  std::vector<float> logits = {1, 9, 8, 3};
  const std::vector<Token> ends = {1};
  const SamplingParams params{.temperature = 0, .stop_tokens = {2}, .min_tokens = 2};
  Sampler sampler(std::make_shared<const SamplingParams>(params), 1, nullptr, {}, 4, ends);
  std::vector<Token> drawn;
  for (int i = 0; i < 3; ++i) drawn.push_back(sampler.pick(logits).value());
  EXPECT_EQ(drawn, (std::vector<Token>{3, 3, 1}));
}

TEST(Sampler, LogitsAndVocabularyOfOtherSizes) {
  std::vector<float> logits = {0, 1, 0, 0, 90, 90};  // a padded head
  EXPECT_EQ(make_sampler({.temperature = 0}, 1, {}, {}, 4).pick(logits), 1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_LT(make_sampler({}, static_cast<std::uint64_t>(i), {}, {}, 4).pick(logits), 4);
  }
  SamplingParams params{.temperature = 0};
  params.logit_bias[9] = 5;  // in the vocabulary, but the head is smaller
  EXPECT_EQ(make_sampler(params, 1, {}, {}, 10).pick(logits), 4);
  std::vector<float> none;
  EXPECT_THROW(make_sampler({}, 1, {}, {}, 4).pick(none), std::invalid_argument);
}

TEST(Sampler, TheSeedDecides) {
  std::vector<float> logits(3000, 0);
  const auto run = [&](std::uint64_t seed) {
    Sampler sampler = sampler_of({.temperature = 2}, logits, {}, seed);
    std::vector<Token> tokens;
    for (int i = 0; i < 40; ++i) tokens.push_back(sampler.pick(logits).value());
    return tokens;
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(run(5), run(6));
}

/// The row that a spec's filters see, by its comments alone.
std::vector<float> edited(const SamplerSpec& spec, std::vector<float> logits) {
  logits.resize(static_cast<std::size_t>(spec.n_vocab));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const bool allowed = spec.mask.empty() || (i / 32 < spec.mask.size() &&
                                               (static_cast<std::uint32_t>(spec.mask[i / 32]) >> i % 32 & 1) != 0);
    if (!allowed) logits[i] = -std::numeric_limits<float>::infinity();
  }
  for (const TokenBias& b : spec.biases) logits.at(static_cast<std::size_t>(b.token)) += b.bias;
  for (const TokenCount& c : spec.counts) {
    float& x = logits.at(static_cast<std::size_t>(c.token));
    if (c.in_prompt || c.times > 0) x = x > 0 ? x / spec.repeat : x * spec.repeat;
    if (c.times > 0) x -= static_cast<float>(c.times) * spec.frequency + spec.presence;
  }
  return logits;
}

// Of a row with all that a request can ask for: what the spec says, applied plainly, leaves the distribution that
// pick() draws from, and a sampler that is only told the tokens goes on alike.
TEST(Sampler, ASpecSaysAllThatPickDoes) {
  std::mt19937_64 random = test::seeded_random();
  const auto below = [&](std::size_t n) { return static_cast<Token>(test::pick_below(random, n)); };
  int compared = 0, masked = 0, barred = 0, dead = 0;
  for (int round = 0; round < 400; ++round) {
    const std::size_t n_vocab = 40 + test::pick_below(random, 200);
    SamplingParams params = random_params(random, n_vocab);
    if (below(3) == 0) params.logit_bias[below(n_vocab)] = kNever;
    while (below(3) == 0) params.allowed_tokens.push_back(below(n_vocab));
    for (Token i = below(6); i > 0; --i) params.bad_words.push_back({below(n_vocab)});
    if (below(2) == 0) params.bad_words.push_back({below(n_vocab), below(n_vocab)});
    params.min_tokens = below(6);
    const std::vector<Token> prompt = {below(n_vocab), below(n_vocab), below(n_vocab)};
    const auto shared = std::make_shared<const SamplingParams>(params);
    const auto in_prompt = std::make_shared<const PromptTokens>(prompt_tokens(prompt));
    const std::vector<Token> banned = {below(n_vocab)}, ends = {below(n_vocab), below(n_vocab)};
    const auto size = static_cast<std::int32_t>(n_vocab);
    const std::uint64_t seed = random();
    Sampler one(shared, seed, in_prompt, banned, size, ends), other = one;
    for (std::uint64_t step = 0; step < 8; ++step) {
      std::vector<float> logits = random_logits(random, n_vocab);
      std::vector<std::int32_t> mask;
      if (below(3) == 0) {
        mask.resize((n_vocab + 31) / 32);
        for (auto& word : mask) word = static_cast<std::int32_t>(random() & random());
      }
      const SamplerSpec spec = other.spec(mask);
      EXPECT_EQ(spec.seed, seed);
      EXPECT_EQ(spec.counter, step);
      std::vector<float> row = edited(spec, logits);
      Sampler plain = sampler_of(
          {.temperature = spec.temperature, .top_k = spec.top_k, .top_p = spec.top_p, .min_p = spec.min_p}, row);
      ASSERT_EQ(difference(normalised(one.distribution(logits, mask)), normalised(plain.distribution(row))), "");
      ++compared;
      masked += mask.empty() ? 0 : 1;
      barred += std::ranges::any_of(spec.biases, [](const TokenBias& b) { return std::isinf(b.bias); }) ? 1 : 0;
      const auto token = one.pick(logits, mask);
      dead += token ? 0 : 1;
      if (!token) break;
      other.take(*token);
    }
  }
  EXPECT_GT(compared, 1500);
  EXPECT_GT(masked, 300);
  EXPECT_GT(barred, 500);
  EXPECT_GT(dead, 5);
}

TEST(Sampler, ExtremeTemperaturesStayInTheVocabulary) {
  std::mt19937_64 random = test::seeded_random();
  std::vector<float> logits = random_logits(random, 700);
  const auto best = static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
  for (const float temperature : {2e-5F, 1e10F, 3e38F}) {
    for (const float top_p : {1.0F, 0.5F, 1e-7F}) {
      for (const float min_p : {0.0F, 1.0F}) {
        Sampler sampler = sampler_of({.temperature = temperature, .top_p = top_p, .min_p = min_p}, logits);
        for (int i = 0; i < 50; ++i) {
          const Token token = sampler.pick(logits).value();
          ASSERT_TRUE(token >= 0 && token < 700);
          if (temperature < 1) {
            ASSERT_EQ(token, best);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace coppice::sampling
