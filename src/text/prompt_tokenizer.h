// PromptTokenizer: tokenizes prompts, and remembers the tokens of pieces of text. Prompts of agents and chats begin
// alike, and libllama takes 3 us a token each time: for a long prompt that is more than the step that computes its new
// end.
//
// Plain text (what lies between special tokens) is cut into pieces where no token reaches across (TextCuts), so the
// tokens of the pieces, joined, are the tokens of the text. Where a vocabulary's texts cannot be cut, nothing is
// remembered. Where there is no room, what was not used for longest goes, of the pieces whose payer has most: so one
// key's texts don't push out another's.
//
// Thread safety: any number of threads at once.
//
// Invariants
//   1. The result is that of Vocabulary::tokenize(). Only a text of too many tokens may be left at another place.
//   2. A piece is found only with the salt that it was remembered with: how long tokenizing takes tells nothing about
//      the prompts of others.
//   3. Pieces are of plain text: a name in one is no special token, wherever the piece is from. A name that is one is
//      in no piece.
//   4. What is remembered takes at most the budget, in bytes.
#pragma once

#include <cstddef>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "check/mutex.h"
#include "kv/digest.h"
#include "kv/types.h"
#include "text/text_cuts.h"
#include "text/vocabulary.h"

namespace coppice::text {

class PromptTokenizer {
 public:
  /// The least bytes of a piece that more text follows.
  static constexpr std::size_t kPieceBytes = 512;
  /// The most. What follows a longer stretch without a cut (encoded bytes, say) is not remembered.
  static constexpr std::size_t kLongestPiece = 16 * kPieceBytes;

  PromptTokenizer(std::shared_ptr<const Vocabulary> vocabulary, std::size_t budget_bytes);

  /// As Vocabulary::tokenize() with add_special and parse_special. `payer`: a key, whoever's pieces are remembered.
  std::vector<kv::Token> tokenize(const MarkedView& text, std::string_view salt, std::size_t most = Vocabulary::kAll,
                                  const std::string& payer = {});

  /// Whether this vocabulary's texts can be cut.
  bool cuts() const { return cuts_.any(); }

  struct Counts {
    std::size_t hits = 0, misses = 0;  ///< pieces
    std::size_t bytes = 0;             ///< remembered, with what keeping them takes
  };
  Counts counts() const;

 private:
  /// SHA-256 of salt and text: clients choose these, and must not choose which are looked up slowly.
  using Key = kv::Digest;
  struct HashOfKey {
    std::size_t operator()(const Key& key) const {
      std::size_t hash = 0;
      std::memcpy(&hash, key.data(), sizeof hash);
      return hash;
    }
  };
  struct Payer {
    std::list<const Key*> uses;  ///< keys of its pieces, the last used first; not empty
    std::size_t bytes = 0;
  };
  using Payers = std::map<std::string, Payer>;
  struct Piece {
    std::vector<kv::Token> tokens;
    Payers::iterator payer;
    std::list<const Key*>::iterator use;
    std::size_t bytes;
  };
  struct Asker {
    std::string_view salt;
    const std::string& payer;
  };

  void append(std::string_view text, const Asker& asker, std::size_t most, std::vector<kv::Token>& tokens);
  bool append_known(const Key& key, std::vector<kv::Token>& tokens);
  void remember(const Key& key, std::vector<kv::Token> tokens, const std::string& payer);
  void forget_one() COPPICE_REQUIRES(mutex_);

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::size_t budget_bytes_;
  TextCuts cuts_;
  mutable check::Mutex mutex_;
  std::unordered_map<Key, Piece, HashOfKey> pieces_ COPPICE_GUARDED_BY(mutex_);
  Payers payers_ COPPICE_GUARDED_BY(mutex_);  ///< that have pieces
  Counts counts_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::text
