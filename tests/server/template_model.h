// TemplateModel: a FakeModel with a real chat template, vocabulary and grammars.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grammar/compiler.h"
#include "server/fake_model.h"
#include "text/chat_template.h"
#include "text/tool_chat.h"
#include "text/vocabulary.h"

namespace coppice::testing {

class TemplateModel : public FakeModel {
 public:
  TemplateModel(std::shared_ptr<const text::Vocabulary> vocabulary, const std::string& source)
      : FakeModel([](std::vector<engine::Event>&&) {}),
        vocabulary_(std::move(vocabulary)),
        template_(vocabulary_, source),
        compiler_([this] {
          grammar::Words words;
          for (kv::Token t = 0; t < vocabulary_->size(); ++t) words.pieces.push_back(vocabulary_->piece(t));
          words.ends.assign(vocabulary_->end_tokens().begin(), vocabulary_->end_tokens().end());
          return words;
        }()) {
    facts_.n_vocab = vocabulary_->size();
    facts_.context_length = 100000;
  }
  std::vector<kv::Token> tokenize(const text::MarkedView& text, bool add_special, bool parse_special,
                                  std::size_t most) const override {
    return vocabulary_->tokenize(text, add_special, parse_special, most);
  }
  text::ToolPrompt render(const text::ToolChat& chat) const override { return template_.render(chat); }
  std::shared_ptr<const grammar::Grammar> compile(const grammar::Source& source, double seconds) const override {
    return compiler_.compile(source, seconds);
  }
  std::shared_ptr<const grammar::Grammar> compiled(const grammar::Source& source) const override {
    return compiler_.find(source);
  }
  const text::Vocabulary& vocabulary() const { return *vocabulary_; }
  std::shared_ptr<const text::Vocabulary> shared_vocabulary() const { return vocabulary_; }

 private:
  std::shared_ptr<const text::Vocabulary> vocabulary_;
  text::ChatTemplate template_;
  grammar::Compiler compiler_;
};

}  // namespace coppice::testing
