// FakeModel: a Model without weights or tokenizer. A token is a byte; a chat renders as "role: content" lines.
// What a request answers is scripted by the test, either all at once on submit() or by hand.
//
// Thread safe, like every Model.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/jobs/model.h"

namespace coppice::testing {

class FakeModel : public server::Model {
 public:
  /// Steps of events that answer a request; each inner vector is one call of the sink.
  using Script = std::function<std::vector<std::vector<engine::Event>>(const engine::Request&)>;

  explicit FakeModel(engine::EventSink sink, Script script = {});

  const server::ModelFacts& facts() const override { return facts_; }
  std::vector<kv::Token> tokenize(const text::MarkedView& text, bool add_special, bool parse_special,
                                  std::size_t most) const override;
  std::vector<kv::Token> prompt_tokens(const text::MarkedView& text, std::string_view cache_salt,
                                       const std::string& payer, std::size_t most) const override;
  std::string detokenize(std::span<const kv::Token> tokens, bool special) const override;
  text::ToolPrompt render(
      const text::ToolChat& chat) const override;  ///< tools' names, then messages, with thoughts and calls
  std::shared_ptr<const grammar::Grammar> compile(const grammar::Source& source, double seconds) const override;
  std::shared_ptr<const grammar::Grammar> compiled(const grammar::Source& source) const override;
  std::vector<std::unique_ptr<sampling::Generation>> make_generations(
      const std::shared_ptr<const sampling::SharedParams>& shared, int n,
      std::span<const kv::Token> prompt) const override;
  std::shared_ptr<sampling::Scorer> scorer() const override { return nullptr; }  // no engine here
  engine::RequestId next_id() override;
  void submit(engine::Request request) override;
  void cancel(engine::RequestId id) noexcept override;
  bool ask(engine::Question question, engine::Reply<engine::View> reply) override;
  /// No engine here: there are no prefixes.
  bool ask(engine::PrefixCommand order, engine::Reply<engine::PrefixAnswer> reply) override;
  engine::Snapshot snapshot() const override;
  void settle(engine::Clock::time_point) override {}
  void stop() override;
  bool ended() const override;

  // The test's side. The waits fail (return false) after a minute.
  /// The id of the nth request, from 0. Throws std::runtime_error in place of a return value.
  engine::RequestId wait_submitted(std::size_t nth);
  bool wait_cancelled(engine::RequestId id);
  bool wait_stopped();
  bool cancelled(engine::RequestId id) const;
  std::size_t submitted() const;
  std::vector<engine::Question> asked() const;
  bool still_asked(std::size_t nth) const;  ///< of those that keeps_questions_ left unanswered
  void answer(std::size_t nth, engine::View view);
  std::vector<kv::Token> prompt(std::size_t nth) const;
  std::string salt(std::size_t nth) const;
  std::string payer(std::size_t nth) const;
  std::vector<std::string> tokenized_salts() const;  ///< of prompt_tokens()
  std::int32_t priority(std::size_t nth) const;
  std::optional<engine::Clock::time_point> deadline(std::size_t nth) const;
  bool cache_report(std::size_t nth) const;
  std::optional<std::int32_t> max_tokens(std::size_t nth) const;
  std::optional<engine::PromptScoring> scoring(std::size_t nth) const;
  void emit(std::vector<engine::Event> events) { sink_(std::move(events)); }

  server::ModelFacts facts_;              ///< change before the server has it
  std::atomic<bool> never_ends_ = false;  ///< stop() or not
  engine::Snapshot snapshot_;
  std::function<void()> on_text_ = [] {};        ///< called by render() and tokenize(); change before the server has it
  std::function<void()> on_detokenize_ = [] {};  ///< likewise
  std::atomic<bool> keeps_questions_ = false;    ///< the test answers them
  std::string calls_;                            ///< GBNF of calls, which begin with "<call>"; likewise
  engine::View view_;                            ///< what questions are answered with; likewise

 private:
  bool wait(auto condition) const;

  engine::EventSink sink_;
  Script script_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  engine::RequestId last_id_ = 0;
  std::vector<engine::Request> requests_;
  mutable std::vector<std::string> tokenized_salts_;
  std::set<engine::RequestId> cancelled_;
  std::vector<engine::Question> asked_;
  std::vector<engine::Reply<engine::View>> kept_;
  bool stopped_ = false;
};

// Events in two words.
sampling::Piece& piece_of(engine::Event& event);
engine::Event piece(engine::RequestId id, std::string text, int sample = 0);
engine::Event last(engine::RequestId id, std::string text, sampling::Finish finish, engine::Usage usage,
                   int sample = 0);
engine::Event refusal(engine::RequestId id, engine::Refusal why, std::string message);

/// Answers with the words, a step each, on every sample; usage counts one completion token per word and sample.
FakeModel::Script words(std::vector<std::string> texts, int cached_tokens = 0);

}  // namespace coppice::testing
