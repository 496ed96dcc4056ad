// The real sampler through preemptions: requests with a temperature, penalties, stop strings and log-probabilities
// share a pool that is too small for them, on the real engine and cache. Each of their samples must have the tokens,
// the text and the log-probabilities that it has alone in a large pool. Random generators, counts of drawn tokens, half
// characters, half stop strings, places in a grammar and budgets of thoughts must all survive.
//
// The fake executor's logits depend on the tokens before, nothing else; here they are spread over a vocabulary.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "engine/harness.h"
#include "grammar/matcher.h"
#include "sampling/make_generation.h"
#include "support/kv_shapes.h"
#include "text/fixtures.h"
#include "text/utf8_stream.h"

namespace coppice::testing {
namespace {

using sampling::Finish;
using sampling::SamplingParams;
using sampling::SharedParams;
using test::pick_below;
using test::vocabulary;

/// The first tokens of the vocabulary: special ones (ends of the text among them), all single bytes, some short words.
constexpr int kLogits = 600;
constexpr std::int32_t kLargePool = 400;  ///< blocks: for any request, of six groups
constexpr int kRounds = test::kSanitized ? 8 : 40;

/// The fake executor with wide rows. One token in sixteen is always likely, so that penalties have something to do.
class WideExecutor final : public executor::BlockingExecutor {
 public:
  explicit WideExecutor(const kv::CacheConfig& config) : fake_(config), info_(fake_.info()) { info_.n_vocab = kLogits; }

  const executor::ExecutorInfo& info() const override { return info_; }
  const std::vector<std::string>& faults() const { return fake_.faults(); }

 private:
  executor::Result run(const executor::Batch& batch) override {
    const executor::Logits hashes = fake_.forward(batch).logits;
    data_.resize(batch.logit_rows.size() * kLogits);
    executor::Logits logits{.data = data_, .n_vocab = kLogits};
    for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const std::uint64_t hash = read_hash(hashes.row(i));
      for (std::uint64_t token = 0; token < kLogits; ++token) {
        const float likely = mix(1, token) % 16 == 0 ? 5.0F : 0.0F;
        logits.row(i)[token] = likely + 4 * static_cast<float>(mix(hash, token) >> 40) * 0x1p-24F;
      }
    }
    return {.logits = logits};
  }

  FakeExecutor fake_;
  executor::ExecutorInfo info_;
  std::vector<float> data_;
};

/// Some that are long enough to be interrupted: by a schema, by a regex, and as llama.cpp writes the strings of tools.
const std::vector<std::shared_ptr<const grammar::Grammar>>& grammars() {
  static const auto all = [] {
    grammar::Words words;
    for (Token token = 0; token < kLogits; ++token) words.pieces.push_back(vocabulary()->piece(token));
    words.ends.assign(vocabulary()->end_tokens().begin(), vocabulary()->end_tokens().end());
    const grammar::Compiler compiler(words);
    using grammar::Kind;
    return std::vector{
        compiler.compile({.kind = Kind::kJsonSchema,
                          .text = R"({"type": "array", "minItems": 4, "items": {"type": "object", "properties": {
                              "a": {"type": "string", "minLength": 1, "maxLength": 9}, "b": {"type": "integer"}},
                              "required": ["a", "b"], "additionalProperties": false}})"}),
        compiler.compile({.kind = Kind::kRegex, .text = "([a-z]{1,9}[ ,.]){9,40}\\."}),
        compiler.compile({.kind = Kind::kGbnf, .text = R"(root ::= ("\"" char{3,40} "\"" ",")+
            char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4}))"})};
  }();
  return all;
}

struct Asked {
  Prompt prompt;
  std::int32_t max_tokens = 0;
  int n = 1;
  std::int32_t priority = 0;
  sampling::SamplingParams params;
};

struct Sample {
  std::vector<Token> tokens;
  std::string text;
  std::vector<std::pair<Token, float>> logprobs;
  std::optional<Finish> finish;
  bool operator==(const Sample&) const = default;
};
using Answer = std::vector<Sample>;

/// What a pool was too small for.
struct Met {
  std::int64_t preemptions = 0, resumptions = 0;
  int pauses = 0;          ///< between two tokens of a sample
  int holding_back = 0;    ///< pauses of a sample whose last token's text was held back
  int stopped_after = 0;   ///< samples that met a stop string after a pause
  int several_pauses = 0;  ///< samples with more than one
  int in_grammar = 0;      ///< pauses of a sample that follows a grammar
  int in_thoughts = 0;     ///< pauses of a sample that has a budget left

  bool enough(bool all) const {
    constexpr int kLeast = kRounds / 4;
    if (preemptions < kLeast || resumptions < kLeast || pauses < kLeast) return false;
    return !all || (several_pauses > 0 && holding_back > 0 && in_grammar > 0 && in_thoughts > 0 && stopped_after > 0);
  }
};

/// Requests that run together in one pool.
class Run {
 public:
  explicit Run(const HarnessConfig& config)
      : executor_(cache_config(config)),
        engine_(kv::Cache(cache_config(config)), executor_, engine_config(config),
                [this](std::vector<engine::Event>&& events) {
                  for (auto& event : events) take(std::move(event));
                }) {}

  void submit(const Asked& asked) {
    engine::Request request;
    request.id = engine_.next_id();
    request.prompt = asked.prompt;
    if (asked.max_tokens > 0) request.max_tokens = asked.max_tokens;
    request.priority = asked.priority;
    request.samples = sampling::make_generations(
        vocabulary(), std::make_shared<const SharedParams>(asked.params, vocabulary()->size()), asked.n, asked.prompt);
    answers_[request.id].resize(static_cast<std::size_t>(asked.n));
    for (Stream& stream : answers_[request.id]) {
      stream.in_grammar = asked.params.grammar.grammar != nullptr;
      stream.end = asked.params.thoughts.end;
    }
    engine_.submit(std::move(request));
  }

  /// In the order of submit().
  std::vector<Answer> finish() {
    const auto step = [this] {
      ++step_;
      return engine_.step();
    };
    while (step() && !::testing::Test::HasFailure()) {
      EXPECT_EQ(engine_.cache().check_integrity(), "") << engine_.cache().dump();
      EXPECT_TRUE(executor_.faults().empty()) << executor_.faults().front();
      EXPECT_LT(step_, 20'000) << "it hangs";
    }
    std::vector<Answer> all;
    for (const auto& [id, streams] : answers_) {
      Answer& answer = all.emplace_back();
      for (const Stream& stream : streams) answer.push_back(stream.sample);
    }
    return all;
  }

  kv::CacheStats cache() const { return engine_.snapshot().cache; }
  std::int64_t blocks_needed(const Asked& asked) const {
    const auto longest = static_cast<std::int32_t>(asked.prompt.size()) + asked.max_tokens;
    return asked.n * std::int64_t{engine_.cache().blocks_needed(longest, 1)};
  }

  void add_to(Met& met) const {
    met.preemptions += engine_.snapshot().preemptions;
    met.resumptions += engine_.snapshot().resumptions;
    for (const auto& [id, streams] : answers_) {
      for (const Stream& stream : streams) {
        met.pauses += stream.pauses;
        met.holding_back += stream.pauses_holding_back;
        met.stopped_after += stream.pauses > 0 && stream.sample.finish == Finish::kStop;
        met.several_pauses += stream.pauses > 1;
        met.in_grammar += stream.in_grammar ? stream.pauses : 0;
        met.in_thoughts += stream.pauses_in_thoughts;
      }
    }
  }

 private:
  struct Stream {
    Sample sample;
    int last_step = 0;  ///< that brought a token
    bool holds_back = false, in_grammar = false;
    int pauses = 0, pauses_holding_back = 0, pauses_in_thoughts = 0;
    std::string end;  ///< of thoughts; empty: they have no bound
  };

  void take(engine::Event&& event) {
    if (const auto* refused = std::get_if<engine::Refused>(&event.news)) {
      ADD_FAILURE() << refused->message;
      return;
    }
    const auto& [sample_index, piece, so_far, message] = std::get<engine::Sampled>(event.news);
    Stream& stream = answers_.at(event.request).at(static_cast<std::size_t>(sample_index));
    Sample& sample = stream.sample;
    EXPECT_FALSE(sample.finish) << "a piece after the last one";
    // A sample that runs has a token in every step.
    if (!sample.tokens.empty() && step_ > stream.last_step + 1) {
      ++stream.pauses;
      stream.pauses_holding_back += stream.holds_back;
      stream.pauses_in_thoughts += !stream.end.empty() && !sample.text.contains(stream.end);
    }
    stream.last_step = step_;
    stream.holds_back = piece.text.empty() && !vocabulary()->piece(piece.token).empty();
    sample.tokens.push_back(piece.token);
    sample.text += piece.text;
    for (const auto& entry : piece.logprobs) sample.logprobs.emplace_back(entry.chosen.token, entry.chosen.logprob);
    sample.finish = piece.finish;
  }

  WideExecutor executor_;
  engine::Engine engine_;
  std::map<engine::RequestId, std::vector<Stream>> answers_;
  int step_ = 0;
};

class Round {
 public:
  Round(Groups groups, std::mt19937_64& random) : groups_(groups), random_(random) {}

  void run(Met& met) {
    const Prompt shared = random_prompt(random_, 30, kLogits);
    std::vector<Asked> requests;
    std::vector<Answer> alone;
    std::int64_t largest = 0;
    for (int i = pick(5, 8); i > 0; --i) {
      Asked& asked = requests.emplace_back(draw(shared));
      set_stops(asked);
      Run run(config(kLargePool, true));
      largest = std::max(largest, run.blocks_needed(asked));
      run.submit(asked);
      alone.push_back(run.finish().front());
    }
    // Each of them could have its whole answer here, if it were alone.
    Run together(config(static_cast<std::int32_t>(largest) + 1 + pick(0, 2), pick(0, 2) == 0));
    for (const Asked& asked : requests) together.submit(asked);
    const auto answers = together.finish();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      expect_same(answers[i], alone[i]);
      for (const Sample& sample : answers[i]) expect_valid(requests[i].params, sample);
    }
    EXPECT_EQ(together.cache().in_use, 0);
    EXPECT_EQ(together.cache().reserved, 0);
    together.add_to(met);
  }

 private:
  int pick(int low, int high) {
    return low + static_cast<int>(pick_below(random_, static_cast<std::size_t>(high - low + 1)));
  }

  HarnessConfig config(std::int32_t num_blocks, bool growth_room) const {
    return {.groups = groups_, .num_blocks = num_blocks, .max_batch = 16, .max_extend = 16, .growth_room = growth_room};
  }

  Asked draw(const Prompt& shared) {
    Asked asked;
    asked.prompt.assign(shared.begin(), shared.begin() + pick(0, static_cast<int>(shared.size())));
    asked.prompt = asked.prompt + random_prompt(random_, static_cast<std::size_t>(pick(1, 20)), kLogits);
    asked.max_tokens = pick(60, 120);
    asked.n = pick(0, 8) == 0 ? 2 : 1;
    asked.priority = pick(0, 3) == 0 ? pick(-1, 1) : 0;
    asked.params = {.temperature = 1,
                    .repeat_penalty = 1 + 0.1F * static_cast<float>(pick(1, 5)),
                    .frequency_penalty = 0.1F * static_cast<float>(pick(1, 10)),
                    .seed = random_(),
                    .ignore_eos = pick(0, 1) == 0,
                    .logprobs = pick(0, 2) == 0 ? 1 : -1};
    if (pick(0, 2) == 0) asked.params.top_p = 0.9F;
    if (pick(0, 2) == 0) {
      const auto close = vocabulary()->tokenize("~", false, false) + vocabulary()->tokenize("t", false, false);
      asked.params.thoughts = {.budget = pick(0, 40), .begin = "<", .end = "~t", .open = true, .close = close};
      if (pick(0, 1) == 0) asked.params.thoughts.last = close;
    }
    if (pick(0, 1) == 0) return asked;
    asked.params.grammar.grammar = grammars()[pick_below(random_, grammars().size())];
    if (pick(0, 2) == 0) asked.params.grammar.after = "e";
    if (!asked.params.thoughts.end.empty()) asked.params.grammar.after = asked.params.thoughts.end;
    asked.params.ignore_eos = false;
    return asked;
  }

  /// Half a character may have four more tokens.
  static void expect_bounded(const sampling::ThoughtParams& thoughts, const Sample& sample) {
    const std::size_t most = static_cast<std::size_t>(thoughts.budget) + 4 + thoughts.close.size();
    if (thoughts.budget < 0 || sample.tokens.size() < most) return;
    const std::string text = vocabulary()->detokenize(std::span(sample.tokens).first(most));
    EXPECT_TRUE(text.contains(thoughts.end)) << text;
  }

  static void expect_valid(const SamplingParams& params, const Sample& sample) {
    expect_bounded(params.thoughts, sample);
    if (!params.grammar.grammar || sample.text.contains("\xEF\xBF\xBD")) return;  // half a character at the end
    std::string_view text = sample.text;
    if (const std::string& after = params.grammar.after; !after.empty()) {
      const std::size_t at = text.find(after);
      if (at == text.npos) return;
      text.remove_prefix(at + after.size());
      // A token may bring the first letters behind `after`: if the grammar can't begin like that, it begins behind
      // them.
      if (!grammar::Matcher(params.grammar.grammar).accept_text(text)) return;
    }
    grammar::Matcher matcher(params.grammar.grammar);
    EXPECT_TRUE(text.empty() || matcher.accept_text(text)) << text;
    if (sample.finish == Finish::kStop && params.stop.empty()) EXPECT_TRUE(matcher.whole()) << text;
  }

  /// Parts of its own text: one may end it, those with another letter behind them only hold text back.
  void set_stops(Asked& asked) {
    Run run(config(kLargePool, true));
    run.submit(asked);
    const std::string text = run.finish().front().front().text;
    for (int i = pick(0, 1); i < 8 && text.size() > 20; ++i) {
      const std::size_t at = text.size() / 4 + pick_below(random_, text.size() / 2);
      const std::string stop = i == 0 ? text.substr(at, 2 + pick_below(random_, 5)) : text.substr(at, 1) + "~";
      if (text::is_utf8(stop)) asked.params.stop.push_back(stop);
    }
  }

  static void expect_same(const Answer& together, const Answer& alone) {
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const auto differs = std::ranges::mismatch(together[i].tokens, alone[i].tokens);
      EXPECT_EQ(together[i].tokens, alone[i].tokens) << "from token " << differs.in2 - alone[i].tokens.begin();
      EXPECT_EQ(together[i].text, alone[i].text);
      EXPECT_EQ(together[i].finish, alone[i].finish);
      EXPECT_EQ(together[i].logprobs, alone[i].logprobs);
    }
  }

  Groups groups_;
  std::mt19937_64& random_;
};

using SamplerPreemption = PerGroups;

TEST_P(SamplerPreemption, StreamsGoOnAsIfUndisturbed) {
  auto random = test::seeded_random();
  Met met;
  // Windows give room back, and a sanitizer's run is short: a seed may need more rounds until the pool was too small
  // often enough.
  const bool all = GetParam() == Groups::kFull && !test::kSanitized;
  for (int round = 0; round < 20 * kRounds && !HasFailure() && (round < kRounds || !met.enough(all)); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Round(GetParam(), random).run(met);
  }
  if (HasFailure()) return;
  std::cout << met.preemptions << " preemptions, " << met.resumptions << " resumptions; " << met.pauses
            << " pauses, in " << met.holding_back << " of them text was held back, " << met.in_grammar
            << " in a grammar, " << met.in_thoughts << " in thoughts; " << met.several_pauses
            << " samples paused more than once, " << met.stopped_after << " stopped after a pause\n";
  EXPECT_TRUE(met.enough(all));
}

COPPICE_FOR_ALL_GROUPS(SamplerPreemption);

}  // namespace
}  // namespace coppice::testing
