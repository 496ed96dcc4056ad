// Preparation: from a GenerationRequest to engine requests: checks, renders the chat template, tokenizes.
//
// It changes nothing but what the model keeps: its next id, and the tokens of prompts' pieces. The server runs it on a
// worker: even a small chat may wait long for the template, which renders one chat at a time, and on the io thread that
// would hold up everybody's streams. A text is read only as far as the context goes, and many prompts are prepared in
// steps, so that others' turns on a worker come soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "grammar/compiler.h"
#include "kv/text.h"
#include "kv/types.h"
#include "sampling/make_generation.h"
#include "server/jobs/generation_request.h"
#include "server/jobs/model.h"
#include "server/jobs/prompt_pictures.h"

namespace coppice::server {

/// Lives until the reply is written, so it holds no texts but the echoes, and those that the samples hold anyway.
struct Prepared {
  GenerationTerms terms;
  std::shared_ptr<const sampling::SharedParams> sampling;  ///< of all samples
  std::vector<engine::Request> requests;                   ///< one per prompt; ids are set
  std::int64_t prompt_tokens = 0;                          ///< of all prompts
  std::vector<std::string> echoes;                         ///< one per prompt, when asked for
  std::vector<PicturePlace> pictures;                      ///< of the only prompt
  std::vector<std::string> prompt_texts;                   ///< of all of its tokens; one per prompt, when asked for
  text::CallIds call_ids = text::CallIds::kAny;            ///< of the answers' calls
  std::size_t calls_before = 0;                            ///< in the chat
  std::shared_ptr<const text::AnswerFormat> format;        ///< of answers with reasoning or calls; null: they are text
};

class Preparation {
 public:
  /// The model outlives it. Throws RequestError.
  Preparation(Model& model, GenerationRequest request);

  /// Looks at a picture, or tokenizes prompts until there were kStepBytes of them. Returns true if it was the last
  /// step; none may follow it, nor one that throws. Throws RequestError. REQUIRES: !wants_grammar(), no missing
  /// pictures, and !wants_looks() where nothing may be decoded.
  bool step();

  /// Must be held before step() is called (vision/fetched_files.h), by the owner that pictures_owner() names.
  std::vector<PromptPictures::File> missing_pictures() { return pictures_.missing(); }
  const std::string& pictures_owner() const { return pictures_.owner(); }

  /// look() may be called before step(), until it returns true.
  bool wants_looks() const { return !pictures_.looked(); }
  /// Decodes a picture: up to a second or so. Throws RequestError. REQUIRES: no missing pictures.
  bool look() { return pictures_.look(); }

  /// compile_grammar() must be called first. Not wanted where the grammar was compiled before.
  bool wants_grammar() const { return asked_.grammar.has_value(); }
  /// `quickly`: it takes kQuickCompileSeconds of CPU time at most, and if that isn't enough the grammar is wanted
  /// still. Else it may take seconds. Throws RequestError.
  void compile_grammar(bool quickly = false);

  /// Its requests have no prompts yet where these have pictures. REQUIRES: step() returned true.
  Prepared take();

  /// encode() must be called before add_rows(), until it returns true. Not wanted where all rows are kept.
  bool wants_rows() const { return !pictures_.encoded(); }
  /// Encodes some rows of a picture: seconds of the encoder's thread. `wanted`: as vision::Encoding::step()'s. Throws
  /// RequestError.
  bool encode(const std::function<vision::Wanted()>& wanted) { return pictures_.encode(wanted); }
  /// Completes what take() returned. REQUIRES: !wants_rows().
  void add_rows(std::span<engine::Request> requests) const;

 private:
  static constexpr std::size_t kStepBytes = std::size_t{16} << 10;  ///< some 5,000 tokens of English

  void follow(std::shared_ptr<const grammar::Grammar> grammar);
  void share_sampling();
  void add_text_params();
  void render_chat();
  void bound_thoughts(const text::ThoughtBounds& thoughts);
  void begin_behind(const text::ThoughtTags& thoughts, grammar::Constraint& constraint) const;
  text::ToolPrompt render(std::vector<Message> messages, const Tools& tools, text::TurnEnd end) const;
  kv::Text beginning() const;
  std::vector<engine::PinWish> pin_wishes(kv::TextView prompt) const;
  std::vector<kv::Token> tokens_of(const text::MarkedView& text, bool first = true) const;
  kv::Text symbols_of(const Prompt& prompt) const;
  kv::Text symbols_of(const text::MarkedView& text) const;
  kv::Text symbols_of(const text::ToolPrompt& chat) const;
  kv::Text symbols_of(const PromptParts& parts) const;
  std::string text_of(kv::TextView symbols) const;
  void add(kv::Text symbols);

  Model& model_;
  GenerationRequest asked_;
  std::vector<Message> marked_;  ///< the chat, where marks are in it
  PromptPictures pictures_;
  std::vector<kv::Text> unfinished_;  ///< prompts with pictures, one for each request; empty: there are none
  Prepared prepared_;
};

}  // namespace coppice::server
