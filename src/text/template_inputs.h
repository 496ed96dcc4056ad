// A chat in the form that a chat template takes, in the words of llama.cpp's chat library: as
// common_chat_templates_apply() would do it, which returns no marks (template_origins.h).
#pragma once

#include <chat.h>

#include <optional>
#include <string>

namespace coppice::text {

/// The prompt as common_chat_templates_apply() makes it. `special`: if not null, gets what the library says of a
/// template that it knows by name, with how its answers are read. Throws what the library throws.
std::string template_prompt(const common_chat_template& its_template, const common_chat_templates_inputs& inputs,
                            bool adds_bos, bool adds_eos, std::optional<common_chat_params>* special = nullptr);

}  // namespace coppice::text
