// Tools of a chat: how the model hears of them, which form its calls have, and how they are read from its text. All
// three come from the model's template, through llama.cpp's chat library, which knows some by name and takes others
// apart by rendering them. A template that knows no tools gets a form of ours: they are listed in the system message,
// and calls are written as many models learn them, {"name": ..., "arguments": ...} between <tool_call> and
// </tool_call>.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/answer_format.h"
#include "text/chat_template.h"
#include "text/marked_text.h"
#include "text/thought_marks.h"
#include "text/thought_splitter.h"

namespace coppice::text {

struct ToolSpec {
  std::string name, description;
  std::string parameters;  ///< a JSON schema
  std::string held = {};   ///< the same as a grammar can hold it (grammar::Kind::kJsonSchema); empty: it can't be, and
                           ///< the library sees the schema

  bool operator==(const ToolSpec&) const = default;
};

/// A rule of a grammar: a string as it is, without quotes (grammar::BareText).
struct BareText {
  std::string schema;   ///< of the string
  std::string pattern;  ///< that the schema has; empty: it has a format
  std::vector<std::string> ends;

  bool operator==(const BareText&) const = default;
};

/// What ChatTemplate::render() takes besides messages.
struct ToolChat {
  std::span<const ChatMessage> messages;  ///< at least one
  TurnEnd end = TurnEnd::kOpenTurn;       ///< kContinue: tools are only told of
  std::span<const ToolSpec> tools;
  bool may_call = true;  ///< false: tools are only told of
  bool must_call = false;
  std::string only;                        ///< with must_call: the tool that must be called; empty: any
  std::span<const std::string> allowed{};  ///< calls are restricted to these tools; empty: to all. The prompt stays
  bool parallel = false;                   ///< there may be several calls in an answer
  bool forms = false;                      ///< an answer that calls nothing is to have a form
  std::optional<bool> thinks;              ///< false: models that can do without are told not to; unset: the default
  std::map<std::string, std::string> variables;  ///< of the template, by name: JSON
};

struct ToolPrompt {
  std::string prompt;
  std::vector<TextSpan> plain;                 ///< of the prompt (MarkedText::plain)
  std::shared_ptr<const AnswerFormat> format;  ///< null: the answer is text
  std::string grammar;                         ///< of calls, in GBNF; empty: none
  std::map<std::string, std::string> schemas;  ///< rules of the grammar that stand for tools' `held`
  std::map<std::string, kv::Token> tokens;     ///< and that stand for tokens without a text (grammar::Source)
  std::map<std::string, BareText> bare;        ///< rules that stand for strings that the schemas bound
  bool spaced = false;               ///< the schemas' JSON has a blank behind commas and colons, and no others
  bool holds_form = false;           ///< ToolChat::forms: the grammar is of all of the answer, with FormFrame::kForm
  std::string from;                  ///< the grammar begins with this text, wherever it comes; empty: at once
  ThoughtTags skipped;               ///< thoughts that the answer may begin with, in which `from` is text
  ThoughtTags ahead;                 ///< that may come before the grammar, which doesn't have them
  std::string begun;                 ///< the part of a grammar's text that is already there when it begins
  std::vector<std::string> stops;    ///< that end an answer besides the client's
  ThoughtTags thoughts;              ///< where they stand before plain text, or text beside calls
  ThoughtBounds bounded;             ///< what ends them early
  FormFrame frame;                   ///< around a form of the answer; without one the form stands behind `thoughts`
  CallIds call_ids = CallIds::kAny;  ///< that the answer's calls are to have
  std::size_t calls_before = 0;      ///< in the chat
};

}  // namespace coppice::text
