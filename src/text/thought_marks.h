// What stands around thoughts in a template's answers, and how thoughts are ended early.
//
// For this folder's .cpp files, but for ThoughtBounds. Functions without state.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/types.h"
#include "text/gbnf_text.h"
#include "text/special_names.h"
#include "text/thought_splitter.h"

namespace coppice::text {

/// How a template writes an answer that thinks: thoughts between `begin` and `end`, then `between`, then a call or,
/// between `text` and `text_end`, the answer's text. All but `begin` and `end` may be empty.
struct ThoughtMarks {
  std::string begin, end;  ///< empty: it doesn't think
  std::string between, text, text_end;
  bool again = false;  ///< thoughts may come again, behind other parts of the answer
  /// What stands before and behind a tool's name where a call begins; empty: a call has marks of its own.
  std::vector<std::pair<std::string, std::string>> calls;
};

/// `begin`, `end`: what llama.cpp's chat library says of the template, which may be nothing.
ThoughtMarks thought_marks(const std::string& source, const std::string& begin, const std::string& end);

/// Tags of thoughts that the library doesn't know of, because the template writes none back: Apertus, Solar Open.
ThoughtTags unknown_tags(const std::string& source);

/// Thoughts that may be ended early. They begin with `begin`, or are open from the answer's first token on.
struct ThoughtBounds {
  std::string begin, end;  ///< empty: nothing is to be bounded
  bool open = false;
  std::string close;  ///< ends them, and leads to what must follow
  std::string last;   ///< ends those that are begun again behind `close`; empty: thoughts come once
  /// Behind `close` one of these texts follows; empty: any does. Else thoughts would be begun again there, and no call
  /// come.
  std::vector<std::string> ways;

  bool operator==(const ThoughtBounds&) const = default;
};

/// Behind `opening`, the prompt's end. `callable`: names of tools of which a call may follow, or the answer's text.
ThoughtBounds thought_bounds(const std::string& opening, const ThoughtMarks& marks,
                             std::span<const std::string> callable = {});

/// Thoughts and marks around a form that the answer's text must have.
struct FormFrame {
  std::string grammar;  ///< GBNF with a rule kForm, whose body counts for nothing; empty: there is no frame
  std::map<std::string, kv::Token> tokens;  ///< rules that are tokens without a text
  static constexpr const char* kForm = "the-form";
};
FormFrame form_frame(const std::string& opening, const ThoughtMarks& marks, const SpecialNames& names);
/// The same as a body in other rules, among which kForm is then; without marks the form alone.
std::string framed_form(const std::string& opening, const ThoughtMarks& marks, GbnfRules& rules);

}  // namespace coppice::text
