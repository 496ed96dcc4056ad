// Model: what the server sees of the loaded model: its text side and the engine. Abstract, so that the server's
// tests need neither weights nor a tokenizer.
//
// Thread safety: every method may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "grammar/compiler.h"
#include "kv/types.h"
#include "sampling/generation.h"
#include "sampling/make_generation.h"
#include "text/chat_template.h"
#include "text/marked_text.h"
#include "text/tool_chat.h"

namespace coppice::vision {
class Pictures;
}

namespace coppice::server {

/// Some vocabularies have tokens of hundreds of spaces; no text worth serving averages more than this per token.
inline constexpr std::size_t kMaxTokenBytes = 64;

/// Fixed while the model is served.
struct ModelFacts {
  std::string attention;  ///< the backend in use
  std::string kv_format;  ///< of the pool
  std::int32_t n_vocab = 0;
  int n_embd = 0;                                    ///< values of an embedding; 0: the model gives none
  engine::Pooling pooling = engine::Pooling::kLast;  ///< of embeddings
  std::int32_t context_length = 0;                   ///< tokens of one sequence, prompt and answer
  std::size_t max_token_bytes = kMaxTokenBytes;      ///< the longest token's text, cut to kMaxTokenBytes
  int max_batch = 32;                                ///< running sequences
  std::size_t max_waiting = 4096;                    ///< requests
  bool share = true;
  std::string chat_template;          ///< its source
  bool continues_assistant = false;   ///< chats whose last message is the assistant's, unless they say what they want
  std::vector<kv::Token> end_tokens;  ///< each ends an answer
  std::string bos, eos, pad;          ///< texts of the first and the last token, and of the one that fills; empty: none
  bool adds_bos = false, adds_eos = false;  ///< to texts
  int most_pictures = 0;                    ///< in a request; 0: the model sees none
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelFacts& facts() const = 0;

  /// A text of more than `most` tokens need not be read to its end: the result is then more than `most` of its first
  /// tokens.
  virtual std::vector<kv::Token> tokenize(const text::MarkedView& text, bool add_special, bool parse_special,
                                          std::size_t most) const = 0;
  /// The same for a prompt, with special tokens added and parsed. Tokens of its text may be remembered for prompts with
  /// the same salt, at the cost of `payer`, a key.
  virtual std::vector<kv::Token> prompt_tokens(const text::MarkedView& text, std::string_view cache_salt,
                                               const std::string& payer, std::size_t most) const = 0;
  /// Joined bytes, not always valid UTF-8. special: show special tokens too.
  virtual std::string detokenize(std::span<const kv::Token> tokens, bool special) const = 0;
  /// The chat's prompt. Throws text::TemplateError.
  virtual text::ToolPrompt render(const text::ToolChat& chat) const = 0;
  /// Takes milliseconds, seconds at worst. Throws grammar::GrammarError; WorkError if it takes more CPU time than that.
  virtual std::shared_ptr<const grammar::Grammar> compile(const grammar::Source& source, double seconds) const = 0;
  /// One compiled lately, else null. Takes microseconds.
  virtual std::shared_ptr<const grammar::Grammar> compiled(const grammar::Source& source) const = 0;
  /// Of n samples of one prompt.
  virtual std::vector<std::unique_ptr<sampling::Generation>> make_generations(
      const std::shared_ptr<const sampling::SharedParams>& shared, int n, std::span<const kv::Token> prompt) const = 0;

  /// Null: the model sees none.
  virtual vision::Pictures* pictures() const { return nullptr; }

  /// For the engine's thread.
  virtual std::shared_ptr<sampling::Scorer> scorer() const = 0;

  // The engine's queues. Events come through the sink that the engine was built with.
  virtual engine::RequestId next_id() = 0;
  virtual void submit(engine::Request request) = 0;
  virtual void cancel(engine::RequestId id) noexcept = 0;
  // As Engine's ask(); false: too many wait for answers.
  virtual bool ask(engine::Question question, engine::Reply<engine::View> reply) = 0;
  virtual bool ask(engine::PrefixCommand order, engine::Reply<engine::PrefixAnswer> reply) = 0;
  virtual engine::Snapshot snapshot() const = 0;
  /// What is cached is to outlive it, if there is a place for that: Engine::settle().
  virtual void settle(engine::Clock::time_point until) = 0;
  virtual void stop() = 0;
  /// After stop(): no step is under way, and none will come.
  virtual bool ended() const = 0;
};

}  // namespace coppice::server
