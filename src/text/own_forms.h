// Forms of calls that llama.cpp's chat library doesn't know, or reads otherwise than the template writes them.
//
// For this folder's .cpp files. Functions without state.
#pragma once

#include <chat.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/thought_splitter.h"

namespace coppice::text {

enum class CallForm : std::uint8_t {
  kLibrary,  ///< the library knows it
  kPlain,    ///< ours, for templates that know no tools: JSON between <tool_call> and </tool_call>
  kMistral,  ///< Mistral Small 3.2: [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}
  kSolar,    ///< Solar Open: <|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>{...}. The library knows but
             ///< one id
  kGranite,  ///< Granite 3.3: <|tool_call|>[{"name": ..., "arguments": {...}}]. Its template writes no calls
  kLfm2,  ///< LFM2: <|tool_call_start|>[name(a="b")]<|tool_call_end|>. The library reads it, but its template writes no
          ///< calls
};

/// `lists`: the template tells the model of tools; `writes`: it writes calls of a conversation.
CallForm call_form(const std::string& source, bool lists, bool writes);

/// The parser of answers, and how a call begins. `tools`: that may be called. `thoughts`: where they stand before the
/// answer. REQUIRES: form is neither kLibrary nor kLfm2.
common_chat_params own_params(CallForm form, const std::vector<common_chat_tool>& tools, const ThoughtTags& thoughts,
                              bool must_call);

/// Calls as the assistant's text, for a template that tells of tools, but writes no calls. `messages`: with objects as
/// arguments.
std::vector<ChatMessage> with_written_calls(CallForm form, std::span<const ChatMessage> messages);

}  // namespace coppice::text
