// ChatTemplate: messages to prompt text, through the Jinja template of the model file.
//
// Thread safety: render() may be called by any number of threads at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/vocabulary.h"

namespace coppice::text {

struct ChatCall {
  std::string id, name;
  std::string arguments;  ///< a JSON object, unless
  /// They are only text: the call was cut off, its maker wrote no JSON, or objects of too many fields.
  bool cut = false;
};

struct ChatMessage {
  std::string role;             ///< "system", "user", "assistant", "tool" or whatever the template knows
  std::string content;          ///< UTF-8
  std::vector<ChatCall> calls;  ///< that the assistant made
  std::string reasoning;        ///< what the assistant thought before
  std::string call_id;          ///< of the call that a tool's message answers
  /// Texts of the content that are no words of the assistant, although the message is: arguments of calls that became
  /// text.
  std::vector<std::string> quoted;
};

/// Which ids of calls a template takes.
enum class CallIds : std::uint8_t {
  kAny,
  kNine,      ///< nine letters and digits: Mistral's
  kFunction,  ///< any, but models write functions.NAME:N themselves, N counting a conversation's calls: Kimi K2's
};

/// How a chat's prompt ends.
enum class TurnEnd : std::uint8_t {
  kClosed,    ///< behind the last message
  kOpenTurn,  ///< with the opening of the assistant's turn
  kContinue,  ///< with the last message, as the assistant's open turn
};

/// What holds for chats that don't say.
struct ChatDefaults {
  bool thinks = true;                            ///< false: models that can do without are told not to
  std::map<std::string, std::string> variables;  ///< of the template, by name: JSON
  bool names_in_content = false;                 ///< names of special tokens are these in contents, too
};

/// The template refuses the messages, or is itself broken; what() holds its reason, fit for a client's eyes.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct ToolChat;
struct ToolPrompt;

class ChatTemplate {
 public:
  /// `override_source`: a Jinja template to use in place of the file's. A file without one gets ChatML, whose
  /// "<|im_end|>" then ends answers as a stop string.
  /// Throws TemplateError when the template does not parse.
  explicit ChatTemplate(std::shared_ptr<const Vocabulary> vocabulary, const std::string& override_source = "",
                        ChatDefaults defaults = {});
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  /// The prompt, to be tokenized with add_special and parse_special (a beginning token that tokenize() adds
  /// is left out here). Throws TemplateError. REQUIRES: at least one message.
  std::string render(std::span<const ChatMessage> messages, TurnEnd end) const;

  /// The same with tools, reasoning and variables of the template (tool_chat.h). With tools it takes milliseconds.
  ToolPrompt render(const ToolChat& chat) const;

  /// The Jinja template.
  std::string source() const;

 private:
  struct Impl;
  void find_thoughts();
  void find_call_ids();
  void find_turns();
  void find_untyped();

  std::shared_ptr<const Vocabulary> vocabulary_;
  ChatDefaults defaults_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::text
