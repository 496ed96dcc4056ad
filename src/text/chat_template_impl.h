// For this folder's .cpp files: what a ChatTemplate keeps.
#pragma once

#include <chat.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "text/chat_history.h"
#include "text/chat_template.h"
#include "text/own_forms.h"
#include "text/prompt_writer.h"
#include "text/special_names.h"
#include "text/thought_marks.h"
#include "text/thought_splitter.h"
#include "text/tool_chat.h"

namespace coppice::text {

/// What the library's parser of an answer doesn't know; mostly nothing.
struct OwnMarks {
  ThoughtTags thoughts;
  std::string text, text_end;
};

struct ChatTemplate::Impl {
  common_chat_templates_ptr templates;
  std::unique_ptr<const PromptWriter> writer;
  CallForm form = CallForm::kPlain;
  bool parallel = true;     ///< it takes several calls of one turn back
  bool one_call = false;    ///< of several calls of one turn it writes the first, or refuses them
  bool alternates = false;  ///< it refuses two messages of the user in a row
  SystemPlaces system;
  CallIds call_ids = CallIds::kAny;
  bool asks_types = false;    ///< it fails where a tool's property has no type
  bool plain_types = false;   ///< it fails where a tool's property is a list or an object
  ThoughtTags thoughts;       ///< around reasoning before plain text
  bool own_thoughts = false;  ///< these tags are read before the library's parser, which doesn't know them
  ThoughtMarks thought_marks;
  SpecialNames marks;    ///< of tokens without a text: grammars name them
  bool marked = false;   ///< answers are marked otherwise: the library reads them, without tools, too
  bool assumed = false;  ///< the file has no template: it is ChatML

  OwnMarks own_marks(const std::string& opening) const;
  // How answers are read, and what holds them (tool_chat.cpp). `opening`: of the assistant's turn.
  void read_continued(common_chat_templates_inputs inputs, const std::string& opening, ToolPrompt& to) const;
  /// `known`: the library's, if it has made them already.
  void read_text(const common_chat_templates_inputs& inputs, std::optional<common_chat_params>&& known,
                 const std::string& opening, ToolPrompt& to) const;
  void read_calls(const ToolChat& chat, const ChatDefaults& defaults, std::span<const ToolSpec> tools,
                  const std::string& opening, ToolPrompt& to) const;
};

/// What a client or an operator gets of the template engine's words, which quote the template over several lines: a
/// template's own refusal alone; of other faults what is wrong, and where.
TemplateError template_fault(std::string_view engine_says);

}  // namespace coppice::text
