// Source: what a text must look like, as a client wrote it. Plain data; Compiler makes a Grammar of it. Any thread.
//
// What bounds a grammar: its size and its time to compile kMax... below, which compiler.cpp and source_check.cpp heed.
// What takes longer than kQuickCompileSeconds (server/jobs/preparation.cpp) is compiled on another thread. The time to
// follow it: matcher.cpp. work.h measures CPU time, and ends what exceeds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/types.h"

namespace coppice::grammar {

enum class Kind : std::uint8_t {
  kJsonSchema,     ///< compact, and already checked: see schema/json_schema.h
  kRegex,          ///< of the whole text
  kGbnf,           ///< llama.cpp's notation; the whole text is `root`
  kStructuralTag,  ///< XGrammar's JSON: free text with parts that follow a grammar from a tag on
};

/// A string without its quotes: what stands between them in JSON of a schema.
struct BareText {
  std::string schema;             ///< of a string with a pattern or a format: such a string has no escapes
  std::string pattern;            ///< the schema's; empty: it has none
  std::vector<std::string> ends;  ///< texts that must not stand in it

  bool operator==(const BareText&) const = default;
};

/// A form that stands in another one.
struct InnerForm {
  Kind kind = Kind::kJsonSchema;
  std::string text;
  bool spaced = false;  ///< as Source::spaced

  bool operator==(const InnerForm&) const = default;
};

struct Source {
  Kind kind = Kind::kGbnf;
  std::string text;
  /// Of kGbnf: its rules, by name, that JSON schemas hold, which are as kJsonSchema's. What the text says of these
  /// counts for nothing.
  std::map<std::string, std::string> schemas = {};
  /// Of kGbnf: rules that are one token, which has no text of its own (Words): a mark.
  std::map<std::string, kv::Token> tokens = {};
  /// Of kGbnf: rules that are forms of other kinds.
  std::map<std::string, InnerForm> forms = {};

  /// Of kGbnf: its rules that are bare texts. What the text says of these counts where one of `ends` might stand in the
  /// string.
  std::map<std::string, BareText> bare = {};

  /// Of JSON: one blank behind each comma and colon, and no white space elsewhere. Else a blank, a tab or a line's end
  /// may stand wherever JSON allows white space, one at a time.
  bool spaced = false;

  /// Who pays for it where it is remembered. Two that differ in nothing else are one grammar.
  std::string payer = {};

  bool operator==(const Source&) const = default;
};

/// What an answer may begin with: thoughts.
struct Passage {
  std::string begin, end;  ///< its marks; an empty end: there is none
  bool open = false;       ///< the prompt has begun it

  bool operator==(const Passage&) const = default;
};

/// What a request asks for: the grammar, and where it begins.
struct Constraint {
  Source source;
  /// The grammar holds from the end of this text on ("</think>"); empty: from the beginning. Before it all is allowed.
  std::string after;
  Passage skipped;  ///< `after` doesn't count in it
  /// With `after`: the first token must be this one ("<think>"), or the grammar holds from the beginning; -1: any may
  /// be.
  kv::Token opens = -1;
  std::string begun;      ///< text that counts as the grammar's first: the prompt's end, or `after` itself
  std::string field;      ///< of the request, for errors
  bool optional = false;  ///< without it, if it can't be compiled, the answer may come in any form

  bool operator==(const Constraint&) const = default;
};

/// A source that cannot be compiled; what() is a sentence for the client.
class GrammarError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kMaxSourceBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxSchemasBytes = std::size_t{1}
                                                << 20;  ///< of all Source::schemas; each has kMaxSourceBytes
inline constexpr std::size_t kMaxRegexBytes = std::size_t{8}
                                              << 10;  ///< "a?a?a?..." takes the square of its length, or more
inline constexpr int kMaxStates = 100000;             ///< of the automata that it becomes
inline constexpr int kMaxWideStates = 6000;           ///< where many characters may follow: these take up to 3 ms each
inline constexpr double kMaxCompileSeconds = 3;       ///< of CPU time
inline constexpr int kMaxSourceDepth = 128;           ///< open brackets; the parsers recurse

/// One of these texts, and nothing else. REQUIRES: at least one.
Source choice_of(std::span<const std::string> texts);

}  // namespace coppice::grammar
