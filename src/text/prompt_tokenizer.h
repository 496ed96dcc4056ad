// PromptTokenizer: tokenizes prompts, and remembers what pieces of text became. Prompts of agents and chats begin alike:
// libllama takes 3 us a token each time, which for a long prompt is more than the step that computes its new end.
//
// Plain text (what lies between special tokens) is cut into pieces at places that no token reaches across, so that tokens
// of the pieces, one after the other, are tokens of the text. That holds for vocabularies of byte pairs none of whose tokens
// has a letter before a space; others are not cut, and nothing is remembered. Least recently used pieces go first.
//
// Thread safety: any number of threads at once.
//
// Invariants
//   1. The result is that of Vocabulary::tokenize(), but for where a text of too many tokens is left.
//   2. A piece is found only with the salt that it was remembered with: how long tokenizing takes tells nothing about the
//      prompts of others [K8].
//   3. What is remembered takes at most the budget.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kv/types.h"
#include "text/vocabulary.h"

namespace coppice::text {

class PromptTokenizer {
 public:
  /// Pieces have at least so many bytes; shorter text, and what is left at the end, is not remembered.
  static constexpr std::size_t kPieceBytes = 512;

  PromptTokenizer(std::shared_ptr<const Vocabulary> vocabulary, std::size_t budget_bytes);

  /// With the model's special tokens around it, and names of special tokens in it counting as these. `most`: as
  /// Vocabulary::tokenize()'s.
  std::vector<kv::Token> tokenize(std::string_view text, std::string_view salt, std::size_t most = Vocabulary::kAll);

  /// Whether this vocabulary's texts can be cut.
  bool cuts() const { return cuts_; }

  struct Counts {
    std::size_t hits = 0, misses = 0;  ///< pieces
    std::size_t bytes = 0;             ///< remembered, with what keeping them takes
  };
  Counts counts() const;

 private:
  struct Piece {
    std::vector<kv::Token> tokens;
    std::list<const std::string*>::iterator use;
    std::size_t bytes;
  };

  bool find_out_whether_it_cuts() const;
  void append(std::string_view text, std::string_view salt, std::size_t most, std::vector<kv::Token>& tokens);
  bool append_known(const std::string& key, std::vector<kv::Token>& tokens);
  void remember(std::string key, std::vector<kv::Token> tokens);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::size_t budget_bytes_;
  bool cuts_;
  mutable std::mutex mutex_;
  std::map<std::string, Piece> pieces_;  ///< by salt and text; a tree, as clients choose the keys
  std::list<const std::string*> uses_;   ///< keys, the last used first
  Counts counts_;
};

}  // namespace coppice::text
