// ParserView: what stands in the parts of a parser of answers (llama.cpp's PEG arena), by its tags.
//
// The arena outlives it. For this folder's .cpp files; not thread safe.
#pragma once

#include <peg-parser.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::text {

class ParserView {
 public:
  using Id = common_peg_parser_id;

  explicit ParserView(const common_peg_arena& arena) : arena_(arena) {}

  const common_peg_arena& arena() const { return arena_; }

  /// A part of this kind; nullptr: it is another.
  template <typename T>
  const T* as(Id id) const {
    return std::get_if<T>(&arena_.get(id));
  }
  /// The parts of a part, in their order.
  std::vector<Id> children(Id id) const;
  /// The part itself: behind tags and other shells that change nothing of the text, but not behind `kept`.
  Id bare(Id id, std::string_view kept = {}) const;

  /// The part or one in it has the tag. Recursive parts end.
  bool has(Id id, const std::string& tag);
  /// What the tag's literals say: the names of tools, or of arguments.
  const std::set<std::string>& names(Id id, const std::string& tag);
  /// The outermost parts with the tag, each once.
  std::vector<Id> outermost(Id id, const std::string& tag) const;
  /// The first text that ends one of "until" in it; empty: none.
  std::vector<std::string> delimiters(Id id) const;
  /// The part is a literal of this text, or a row that begins with one.
  bool begins_with(Id id, std::string_view text) const;
  /// The literal that `next` may be, if it ends `text`; empty: there is none.
  std::string optional_end(Id text, Id next) const;
  /// Rules by which lazy grammars begin.
  std::vector<Id> triggers() const;

 private:
  struct Facts {
    bool known = false;
    std::set<std::string> tags;
    std::map<std::string, std::set<std::string>> names;
  };
  const Facts& facts(Id id);
  void learn(Id id, std::set<Id>& seen, Facts& facts) const;

  const common_peg_arena& arena_;
  std::map<Id, Facts> facts_;
};

}  // namespace coppice::text
