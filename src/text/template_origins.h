// MarkedTemplate: a chat template that tells which bytes of a rendered prompt are from a client.
//
// llama.cpp's Jinja engine marks strings as input, and keeps the marks of what it joins, cuts and strips. Some of what
// it offers loses them: tojson, join, split. So the template's program is changed: such a step's result is looked
// through for names of special tokens, and one that the template's own texts don't have keeps the mark. The program is
// also made one statement, which sets the marks before it runs, and keeps the parts that it made: the library returns a
// prompt as one text (docs/decisions.md, "Text that forges no turn").
//
// Thread safety: render() may be called by any number of threads at once.
#pragma once

#include <chat.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/marked_text.h"
#include "text/special_names.h"

namespace coppice::text {

/// Whose strings are marked.
enum class Origin : std::uint8_t {
  kClient,         ///< contents of messages but the assistant's, calls' arguments, tools, documents
  kLastContent,    ///< the last message's content
  kLastReasoning,  ///< the last message's reasoning
};

class MarkedTemplate {
 public:
  /// `names`: those whose marks must not be lost. Throws as common_chat_template does.
  MarkedTemplate(const std::string& source, const std::string& bos, const std::string& eos, SpecialNames names);
  ~MarkedTemplate();
  MarkedTemplate(const MarkedTemplate&) = delete;
  MarkedTemplate& operator=(const MarkedTemplate&) = delete;

  struct Rendered {
    std::string text;
    std::vector<TextSpan> marked;  ///< ascending, disjoint
  };
  using Library = std::function<std::string(const common_chat_template&)>;
  /// `quoted`: texts that are a client's in the assistant's contents, too, wherever they stand there.
  /// `library`: renders the template that it gets, first of all the prompt that it returns, at most with another
  /// beginning or end, or one other change. Throws what it throws.
  Rendered render(Origin origin, const Library& library, std::span<const std::string> quoted = {}) const;

  const SpecialNames& names() const { return names_; }

 private:
  class Program;

  SpecialNames names_;
  common_chat_template template_;
};

}  // namespace coppice::text
