// EngineOnFakes: a Model whose engine is the real one, on the fake executor: what the server and the engine do
// together. Texts are tokenized as FakeModel does; a sample's tokens are those of the oracle (engine/oracle.h) for its
// prompt and seed (0 if the request has none).
//
// Thread safety: as Model. The engine is run by the test: in a thread of its own, or step by step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/harness.h"
#include "server/fake_model.h"
#include "support/fake_generation.h"

namespace coppice::testing {

class EngineOnFakes final : public server::Model {
 public:
  EngineOnFakes(engine::EventSink sink, const HarnessConfig& config);

  engine::Engine& engine() { return engine_; }
  FakeExecutor& executor() { return executor_; }
  /// The text of an answer of `n_tokens`.
  std::string expected_text(const Prompt& prompt, std::uint64_t seed, int n_tokens) const;

  const server::ModelFacts& facts() const override { return facts_; }
  std::vector<kv::Token> tokenize(const text::MarkedView& text, bool add_special, bool parse_special,
                                  std::size_t most) const override {
    return texts_.tokenize(text, add_special, parse_special, most);
  }
  std::vector<kv::Token> prompt_tokens(const text::MarkedView& text, std::string_view, const std::string&,
                                       std::size_t most) const override {
    return texts_.tokenize(text, true, true, most);
  }
  std::string detokenize(std::span<const kv::Token> tokens, bool special) const override {
    return texts_.detokenize(tokens, special);
  }
  text::ToolPrompt render(const text::ToolChat& chat) const override { return texts_.render(chat); }
  std::shared_ptr<const grammar::Grammar> compile(const grammar::Source&, double) const override {
    throw grammar::GrammarError("no grammars here");
  }
  std::shared_ptr<const grammar::Grammar> compiled(const grammar::Source&) const override { return nullptr; }
  std::vector<std::unique_ptr<sampling::Generation>> make_generations(
      const std::shared_ptr<const sampling::SharedParams>& shared, int n,
      std::span<const kv::Token> prompt) const override;
  std::shared_ptr<sampling::Scorer> scorer() const override { return scorer_; }
  engine::RequestId next_id() override { return engine_.next_id(); }
  void submit(engine::Request request) override { engine_.submit(std::move(request)); }
  void cancel(engine::RequestId id) noexcept override { engine_.cancel(id); }
  bool ask(engine::Question question, engine::Reply<engine::View> reply) override {
    return engine_.ask(std::move(question), std::move(reply));
  }
  bool ask(engine::PrefixCommand order, engine::Reply<engine::PrefixAnswer> reply) override {
    return engine_.ask(std::move(order), std::move(reply));
  }
  engine::Snapshot snapshot() const override { return engine_.snapshot(); }
  void settle(engine::Clock::time_point until) override { engine_.settle(until); }
  void stop() override { engine_.stop(); }
  bool ended() const override { return engine_.ended(); }

 private:
  std::vector<kv::GroupSpec> groups_;
  server::ModelFacts facts_;
  FakeModel texts_;
  FakeExecutor executor_;
  engine::Engine engine_;
  std::shared_ptr<FakeScorer> scorer_ = std::make_shared<FakeScorer>();
};

}  // namespace coppice::testing
