// Vocabulary: the tokenizer of a GGUF file: text to tokens and back.
//
// Owns a libllama model loaded with its vocabulary only (no weights), and a copy of every token's bytes.
// Thread safety: construction on one thread; const methods may be called by any number of threads at once.
//
// Invariants
//   1. Token ids are [0, size()). piece() of any other id is empty, is_end() false.
//   2. The bytes of detokenize(tokens) are the pieces one after the other, for every vocabulary type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kv/types.h"
#include "text/marked_text.h"
#include "text/special_names.h"

struct llama_model;

namespace coppice::text {

/// The file cannot be read as a GGUF with a vocabulary; what() holds the reason.
class VocabularyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A text has a character for which the vocabulary has neither a token nor tokens of its bytes.
class UnknownCharacter : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Vocabulary {
 public:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  /// Throws VocabularyError.
  explicit Vocabulary(const std::filesystem::path& gguf);
  ~Vocabulary();
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  /// add_special: put the model's beginning (and end) tokens around the text, if it is trained with them.
  /// parse_special: the text of special tokens ("<|im_start|>") becomes these tokens where the text has no mark, else
  /// it is plain text. Rendered chat prompts want both true. Where names overlap, the leftmost counts, then the
  /// longest, as in the `tokenizers` package. `most`: a text of more tokens is not read to its end; the result is then
  /// more than `most` tokens of its beginning. Byte-pair vocabularies cut a run of more than 8,192 characters of one
  /// kind (letters, digits, spaces, others) there, so a token may end early. Throws std::length_error for plain text of
  /// 2 GiB and more between two specials, and UnknownCharacter. Byte-pair vocabularies leave such characters out, as in
  /// llama.cpp.
  std::vector<kv::Token> tokenize(const MarkedView& text, bool add_special, bool parse_special,
                                  std::size_t most = kAll) const;

  /// The same with another way to tokenize what lies between special tokens: it appends the tokens of a text.
  using AppendPlain = std::function<void(std::string_view text, std::vector<kv::Token>& tokens)>;
  std::vector<kv::Token> tokenize(const MarkedView& text, bool add_special, bool parse_special, std::size_t most,
                                  const AppendPlain& append) const;
  /// What the first tokenize() does with plain text: no text is special here. `most`: of `tokens`, as above.
  void append_plain(std::string_view text, std::vector<kv::Token>& tokens, std::size_t most = kAll) const;

  /// The token's bytes, not always valid UTF-8 on their own. Special (control, unknown) tokens are empty
  /// unless `special`.
  std::string piece(kv::Token token, bool special = false) const;

  /// The names that tokenize() looks for with parse_special.
  const SpecialNames& specials() const { return specials_; }

  /// Joined pieces, not always valid UTF-8 (Utf8Stream repairs that).
  std::string detokenize(std::span<const kv::Token> tokens, bool special = false) const;

  /// Does the token end the generation (end of text, of turn, of message)?
  bool is_end(kv::Token token) const;
  /// All of them, ascending.
  std::span<const kv::Token> end_tokens() const { return end_tokens_; }

  /// The texts of the tokens that begin and end a text, and fill a batch; empty: none.
  std::string bos() const;
  std::string eos() const;
  std::string pad() const;
  /// Does add_special put a token before a text, or behind it?
  bool adds_before() const { return !before_.empty(); }
  bool adds_after() const { return !after_.empty(); }

  /// Whether it splits text into words and merges the bytes of each pair by pair, as GPT-2 does.
  bool is_byte_pairs() const;

  std::int32_t size() const { return static_cast<std::int32_t>(offsets_.size()) - 1; }

  /// For ChatTemplate; valid as long as this.
  const llama_model* model() const { return model_.get(); }

 private:
  struct ModelDeleter {
    void operator()(llama_model* model) const;
  };

  void learn_specials();
  void append_between(const MarkedView& text, std::size_t begin, std::size_t end, const AppendPlain& append,
                      std::vector<kv::Token>& tokens) const;
  void append_rest(std::string_view text, const AppendPlain& append, std::vector<kv::Token>& tokens) const;
  void append_whole(std::string_view text, std::vector<kv::Token>& tokens) const;
  void append_part(std::string_view text, std::vector<kv::Token>& tokens) const;
  std::int32_t run_tokenizer(std::string_view text, std::span<kv::Token> tokens, bool add_special) const;

  std::unique_ptr<llama_model, ModelDeleter> model_;
  std::string bytes_;                   ///< all tokens' bytes, specials included, one after the other
  std::vector<std::uint32_t> offsets_;  ///< [size() + 1] into bytes_
  std::vector<bool> hidden_;            ///< [size()]: empty in plain text
  std::vector<bool> ends_;              ///< [size()]
  std::vector<kv::Token> end_tokens_;
  SpecialNames specials_, user_defined_;   ///< what tokenize() looks for with parse_special, and without
  std::vector<kv::Token> before_, after_;  ///< what add_special puts around a text
};

}  // namespace coppice::text
