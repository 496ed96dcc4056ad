// EngineModel: the Model of the real server: a vocabulary, a chat template, an engine.
//
// Refers to the engine, which outlives it; shares the vocabulary. Thread safety: as Model.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "sampling/logprobs.h"
#include "sampling/make_generation.h"
#include "sampling/mask_pool.h"
#include "server/jobs/model.h"
#include "text/chat_template.h"
#include "text/prompt_tokenizer.h"
#include "text/vocabulary.h"
#include "vision/pictures.h"

namespace coppice::server {

class EngineModel final : public Model {
 public:
  EngineModel(ModelFacts facts, std::shared_ptr<const text::Vocabulary> vocabulary,
              std::shared_ptr<const text::ChatTemplate> chat_template, engine::Engine& engine,
              std::unique_ptr<vision::Pictures> pictures = nullptr)
      : facts_(std::move(facts)),
        vocabulary_(std::move(vocabulary)),
        template_(std::move(chat_template)),
        engine_(engine),
        pictures_(std::move(pictures)),
        prompt_tokenizer_(vocabulary_, kRememberedBytes),
        scorer_(std::make_shared<sampling::VocabularyScorer>(vocabulary_)),
        masks_(std::make_shared<sampling::MaskPool>([&engine] { engine.wake(); },
                                                    [&engine] { return engine.snapshot().keys > 1; })) {
    facts_.max_token_bytes = longest_token();
    facts_.end_tokens.assign(vocabulary_->end_tokens().begin(), vocabulary_->end_tokens().end());
  }

  /// Samples that are left in the engine make their own masks.
  ~EngineModel() override { masks_->close(); }
  EngineModel(const EngineModel&) = delete;
  EngineModel& operator=(const EngineModel&) = delete;

  const ModelFacts& facts() const override { return facts_; }
  std::vector<kv::Token> tokenize(const text::MarkedView& text, bool add_special, bool parse_special,
                                  std::size_t most) const override {
    return vocabulary_->tokenize(text, add_special, parse_special, most);
  }
  std::vector<kv::Token> prompt_tokens(const text::MarkedView& text, std::string_view cache_salt,
                                       const std::string& payer, std::size_t most) const override {
    return prompt_tokenizer_.tokenize(text, cache_salt, most, payer);
  }
  std::string detokenize(std::span<const kv::Token> tokens, bool special) const override {
    return vocabulary_->detokenize(tokens, special);
  }
  text::ToolPrompt render(const text::ToolChat& chat) const override { return template_->render(chat); }
  std::shared_ptr<const grammar::Grammar> compile(const grammar::Source& source, double seconds) const override {
    std::call_once(compiler_made_, [this] {
      compiler_ = std::make_unique<const grammar::Compiler>(words());
      ready_compiler_ = compiler_.get();
    });
    return compiler_->compile(source, seconds);
  }
  std::shared_ptr<const grammar::Grammar> compiled(const grammar::Source& source) const override {
    const grammar::Compiler* compiler = ready_compiler_;
    return compiler == nullptr ? nullptr : compiler->find(source);
  }
  std::vector<std::unique_ptr<sampling::Generation>> make_generations(
      const std::shared_ptr<const sampling::SharedParams>& shared, int n,
      std::span<const kv::Token> prompt) const override {
    return sampling::make_generations(vocabulary_, shared, n, prompt, masks_);
  }
  vision::Pictures* pictures() const override { return pictures_.get(); }
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
  static constexpr std::size_t kRememberedBytes = 16 << 20;  ///< some 10 MB of text

  std::size_t longest_token() const {
    std::size_t longest = 4;  // what has no token of its own costs at least one per code point
    for (kv::Token token = 0; token < vocabulary_->size(); ++token)
      longest = std::max(longest, vocabulary_->piece(token, true).size());
    return std::min(longest, kMaxTokenBytes);
  }

  grammar::Words words() const {
    grammar::Words words;
    for (kv::Token token = 0; token < vocabulary_->size(); ++token) words.pieces.push_back(vocabulary_->piece(token));
    words.ends.assign(vocabulary_->end_tokens().begin(), vocabulary_->end_tokens().end());
    return words;
  }

  ModelFacts facts_;
  std::shared_ptr<const text::Vocabulary> vocabulary_;
  std::shared_ptr<const text::ChatTemplate> template_;
  engine::Engine& engine_;
  std::unique_ptr<vision::Pictures> pictures_;
  mutable text::PromptTokenizer prompt_tokenizer_;
  std::shared_ptr<sampling::Scorer> scorer_;
  std::shared_ptr<sampling::MaskPool> masks_;
  mutable std::once_flag compiler_made_;
  mutable std::unique_ptr<const grammar::Compiler> compiler_;  ///< made for the first grammar: it takes time and memory
  mutable std::atomic<const grammar::Compiler*> ready_compiler_ = nullptr;  ///< who only looks doesn't wait for it
};

}  // namespace coppice::server
