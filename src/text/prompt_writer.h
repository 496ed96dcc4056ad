// PromptWriter: a chat's prompt through the model's template, and which names of special tokens in it are only text, as
// a client wrote them.
//
// Thread safety: none; one thread at a time.
#pragma once

#include <chat.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "text/marked_text.h"
#include "text/template_origins.h"
#include "text/vocabulary.h"

namespace coppice::text {

class PromptWriter {
 public:
  /// Those of the library. `names_in_content`: names of special tokens are these wherever they stand.
  PromptWriter(const Vocabulary& vocabulary, const common_chat_templates& templates, bool names_in_content);

  /// `quoted`: as MarkedTemplate::render() has it. `special`: as template_prompt() has it.
  MarkedText write(const common_chat_templates_inputs& inputs, std::span<const std::string> quoted = {},
                   std::optional<common_chat_params>* special = nullptr) const;

  struct Continued {
    MarkedText prompt;
    std::string opening;  ///< what of the prompt stands behind the client's last text: the assistant's turn up to here
  };
  /// The prompt ends where the last message's text does: its content, or its reasoning where it has no content. As the
  /// template writes a whole message, without the end of one. `inputs` ask for no generation prompt.
  Continued write_continued(const common_chat_templates_inputs& inputs, std::span<const std::string> quoted = {}) const;

  /// What the template adds for the assistant's turn. `prompt`: what write() made of the same inputs, with it.
  std::string opening(common_chat_templates_inputs inputs, const std::string& prompt) const;

 private:
  MarkedTemplate::Rendered render(const common_chat_templates_inputs& inputs, Origin origin,
                                  std::span<const std::string> quoted = {},
                                  std::optional<common_chat_params>* special = nullptr) const;
  MarkedText marked(const common_chat_templates_inputs& inputs, MarkedTemplate::Rendered rendered) const;
  const MarkedTemplate& template_for(const common_chat_templates_inputs& inputs) const;

  bool adds_bos_, adds_eos_, names_in_content_;
  std::unique_ptr<MarkedTemplate> own_, for_tools_;  ///< for_tools_: null where own_ is used for these, too
};

}  // namespace coppice::text
