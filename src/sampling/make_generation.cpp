#include "sampling/make_generation.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "grammar/matcher.h"
#include "sampling/grammar_state.h"
#include "sampling/logprobs.h"
#include "sampling/sampler.h"
#include "sampling/stop_matcher.h"
#include "sampling/thought_budget.h"
#include "text/utf8_stream.h"

namespace coppice::sampling {

namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

SamplingParams checked(SamplingParams params, std::int32_t n_vocab) {
  check(params, n_vocab);
  return params;
}

/// f(), where a grammar that can't be followed is the client's mistake.
template <class F>
std::invoke_result_t<F> guarded(F&& f) {
  try {
    return f();
  } catch (const grammar::GrammarError& e) {
    throw Unsatisfiable(e.what());
  }
}

/// Tokens -> bytes -> whole characters (utf8_) -> text free of stop strings (stops_). Positions are byte offsets in the
/// stream of whole characters.
class TextGeneration final : public Generation {
 public:
  TextGeneration(std::shared_ptr<const text::Vocabulary> vocabulary, const std::shared_ptr<const SharedParams>& shared,
                 std::uint64_t seed, std::shared_ptr<const PromptTokens> prompt, std::shared_ptr<MaskPool> pool)
      : vocabulary_(std::move(vocabulary)),
        sampler_({shared, &shared->params}, seed, std::move(prompt),
                 shared->params.ignore_eos ? vocabulary_->end_tokens() : std::span<const kv::Token>(),
                 vocabulary_->size(), vocabulary_->end_tokens()),
        stops_(shared->stops),
        params_(shared, &shared->params),
        n_logprobs_(shared->params.logprobs),
        logprobs_of_end_(shared->params.logprobs_of_end && n_logprobs_ >= 0) {
    if (shared->params.thoughts.budget >= 0) thoughts_ = std::make_unique<ThoughtBudget>(shared->params.thoughts);
    if (shared->params.grammar.grammar)
      grammar_ = std::make_unique<GrammarState>(shared->params.grammar, std::move(pool));
  }

  void prepare() override {
    if (grammar_) grammar_->prepare();
  }
  bool ready() override { return !grammar_ || grammar_->ready(); }

  Piece next(std::span<float> logits) override {
    if (ended_) throw std::logic_error("Generation::next() after the end");
    if (const auto token = forced()) {
      drawable_ = {{.token = *token, .weight = 1}};
      sampler_.take(*token);
      return follow(*token, logits);
    }
    const std::optional<kv::Token> drawn = guarded([&] {
      const auto allowed = mask();
      look(logits, allowed);
      return sampler_.pick(logits, allowed);
    });
    if (!drawn && std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); }))
      throw std::runtime_error("the model gave no numbers: its weights are damaged");
    return follow(drawn.value_or(-1), logits);
  }

  Needs needs() const override {
    if (grammar_ && !grammar_->quick()) return Needs::kLogits;
    if (n_logprobs_ < 0) return Needs::kToken;
    return params_->logprobs_of_drawn ? Needs::kLogits : Needs::kLogprobs;
  }

  SamplerSpec spec() override {
    if (ended_) throw std::logic_error("Generation::spec() after the end");
    if (const auto token = forced()) return only(*token);
    return guarded([&] { return sampler_.spec(mask()); });
  }

  Piece take(kv::Token token, std::span<const float> logits) override {
    if (ended_) throw std::logic_error("Generation::take() after the end");
    if (token >= 0) sampler_.take(token);
    return follow(token, logits);
  }

  Piece flush() override {
    Piece piece;
    if (ended_) return piece;  // nothing is held back
    piece.text = stops_.push(utf8_.flush());
    if (!stops_.stopped()) piece.text += stops_.flush();
    deliver(piece);
    for (Held& held : entries_) piece.logprobs.push_back(std::move(held.entry));
    entries_.clear();
    ended_ = true;
    return piece;
  }

 private:
  /// What a token that was drawn brings; -1: none was possible.
  Piece follow(kv::Token token, std::span<const float> logits) {
    if (token < 0) return dead_end();
    const bool last = ends(token);
    if (!last && grammar_ && !guarded([&] { return grammar_->accept(token, *vocabulary_); })) return dead_end();
    ++n_tokens_;
    if (last) {
      Piece piece = flush();
      if (logprobs_of_end_) piece.logprobs.push_back(entry_of(logits, token));
      piece.token = token;
      piece.finish = Finish::kStop;
      return piece;
    }
    const std::size_t begin = n_characters_;
    const std::string characters = utf8_.push(vocabulary_->piece(token, params_->show_special));
    n_characters_ += characters.size();
    if (thoughts_) thoughts_->take(token, vocabulary_->piece(token, true), utf8_.pending() == 0);
    if (n_logprobs_ >= 0) {
      // Half a character at the end: the token is out when at least one byte more is out.
      const std::size_t end = n_characters_ + (utf8_.pending() > 0 ? 1 : 0);
      entries_.push_back({begin, end, entry_of(logits, token)});
    }
    Piece piece;
    piece.token = token;
    piece.text = n_tokens_ > params_->min_tokens ? stops_.push(characters) : characters;
    deliver(piece);
    return piece;
  }

  /// What the budget of thoughts wants next. Where the grammar wants something else, the text only looks like thoughts.
  std::optional<kv::Token> forced() {
    const auto token = thoughts_ ? thoughts_->forced() : std::nullopt;
    if (!token || !grammar_) return token;
    const auto mask = guarded([&] { return grammar_->mask(); });
    const auto word = static_cast<std::size_t>(*token) / 32;
    if (mask.empty() || (static_cast<std::uint32_t>(mask[word]) >> *token % 32 & 1U) != 0) return token;
    thoughts_.reset();
    return {};
  }

  SamplerSpec only(kv::Token token) const {
    SamplerSpec spec{.temperature = 0, .n_vocab = vocabulary_->size()};
    spec.mask = mask_of({&token, 1});
    return spec;
  }

  bool ends(kv::Token token) const {
    if (!params_->ignore_eos && vocabulary_->is_end(token)) return true;
    return std::ranges::find(params_->stop_tokens, token) != params_->stop_tokens.end();
  }

  struct Held {
    std::size_t begin, end;  ///< the token's text is [begin, end)
    LogprobEntry entry;
  };

  /// Before a token is drawn: what it is drawn from, if that is asked for.
  void look(std::span<float> logits, std::span<const std::int32_t> mask) {
    if (n_logprobs_ >= 0 && params_->logprobs_of_drawn) drawable_ = sampler_.distribution(logits, mask);
  }

  LogprobEntry entry_of(std::span<const float> logits, kv::Token token) {
    return params_->logprobs_of_drawn ? read_drawn(drawable_, token, n_logprobs_, *vocabulary_)
                                      : logprobs_.read(logits, token, n_logprobs_, *vocabulary_);
  }

  /// Of the next token, by the grammar, or without one by the budget of thoughts; empty: all are allowed.
  std::span<const std::int32_t> mask() {
    if (grammar_) return grammar_->mask();
    const auto choice = thoughts_ ? thoughts_->choice() : std::vector<kv::Token>();
    if (choice.empty()) return {};
    choice_ = mask_of(choice);
    return choice_;
  }

  std::vector<std::int32_t> mask_of(std::span<const kv::Token> tokens) const {
    std::vector<std::int32_t> mask((static_cast<std::size_t>(vocabulary_->size()) + 31) / 32);
    for (const kv::Token token : tokens)
      mask[static_cast<std::size_t>(token) / 32] |= static_cast<std::int32_t>(1U << token % 32);
    return mask;
  }

  /// Bans or biases leave no token, or the vocabulary none that continues the text by the grammar.
  Piece dead_end() {
    if (!grammar_) throw Unsatisfiable("no token may be drawn: what the request bans or allows leaves none");
    if (!grammar_->whole())
      throw Unsatisfiable("no token may be drawn that goes on by the grammar: bans, biases or min_tokens leave none");
    Piece piece = flush();
    piece.finish = Finish::kStop;
    return piece;
  }

  /// Adds the entries of the tokens whose text is out. At a stop string also that of the token that it cut in two;
  /// later tokens get none.
  void deliver(Piece& piece) {
    n_out_ += piece.text.size();
    if (stops_.stopped()) {
      piece.finish = Finish::kStop;
      piece.stop = stops_.met();
      ended_ = true;
    }
    auto held = entries_.begin();
    for (; held != entries_.end(); ++held) {
      const bool out = held->end <= n_out_ || (stops_.stopped() && held->begin < n_out_);
      if (!out) break;
      piece.logprobs.push_back(std::move(held->entry));
    }
    entries_.erase(entries_.begin(), held);
    if (stops_.stopped()) entries_.clear();
  }

  std::shared_ptr<const text::Vocabulary> vocabulary_;
  Sampler sampler_;
  LogprobReader logprobs_;
  std::vector<Candidate> drawable_;  ///< before the last draw, if log-probabilities are of that
  text::Utf8Stream utf8_;
  StopMatcher stops_;
  std::shared_ptr<const SamplingParams> params_;
  std::unique_ptr<GrammarState> grammar_;    ///< null: none
  std::unique_ptr<ThoughtBudget> thoughts_;  ///< null: no bound
  std::vector<std::int32_t> choice_;         ///< its mask
  int n_logprobs_;
  bool logprobs_of_end_;
  bool ended_ = false;
  std::int32_t n_tokens_ = 0;  ///< drawn

  std::size_t n_characters_ = 0;  ///< bytes that left utf8_
  std::size_t n_out_ = 0;         ///< bytes that left stops_
  std::vector<Held> entries_;     ///< of tokens whose text is not out
};

}  // namespace

SharedParams::SharedParams(SamplingParams p, std::int32_t n_vocab)
    : params(checked(std::move(p), n_vocab)), stops(std::make_shared<const StopStrings>(params.stop)) {}

std::vector<std::unique_ptr<Generation>> make_generations(const std::shared_ptr<const text::Vocabulary>& vocabulary,
                                                          const std::shared_ptr<const SharedParams>& shared, int n,
                                                          std::span<const kv::Token> prompt,
                                                          const std::shared_ptr<MaskPool>& pool) {
  const SamplingParams& params = shared->params;
  std::shared_ptr<const PromptTokens> tokens;
  if (params.repeat_penalty != 1) tokens = std::make_shared<const PromptTokens>(prompt_tokens(prompt));
  std::vector<std::unique_ptr<Generation>> generations;
  for (int i = 0; i < n; ++i) {
    const std::uint64_t seed = params.seed ? *params.seed + static_cast<std::uint64_t>(i) : random_seed();
    generations.push_back(std::make_unique<TextGeneration>(vocabulary, shared, seed, tokens, pool));
  }
  return generations;
}

}  // namespace coppice::sampling
