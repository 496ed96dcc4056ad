// A chat in the form that a chat template takes, in the words of llama.cpp's chat library: as common_chat_templates_apply() would
// do it, which returns no marks (template_origins.h).
#pragma once

#include <chat.h>

#include <string>

namespace coppice::text {

/// The prompt as common_chat_templates_apply() makes it. `prompt_of`: the library's parser for the template's answers, and what it
/// does to messages for that, are not wanted. Throws what the library throws.
std::string template_prompt(const common_chat_template& its_template, const common_chat_templates_inputs& inputs,
                            bool adds_bos, bool adds_eos);

}  // namespace coppice::text
