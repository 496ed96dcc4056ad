// A conversation's calls and results, as a chat template can take them: their ids, calls that were cut off, and text in
// place of both where the template knows none.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/tool_chat.h"

namespace coppice::text {

/// What a template needs.
struct HistoryNeeds {
  bool objects = false;  ///< calls' arguments are objects; else it writes any text
  CallIds ids = CallIds::kAny;
  bool reads_results = false;  ///< the library reads tools' results as JSON, and calls itself for each level of that
};

/// The same conversation. A call whose arguments are no object becomes the assistant's text where the template needs
/// one, and its result a user's message. Ids that a strict template refuses become others, by their text alone: an id
/// has the same one in each turn. Where two would have the same in one conversation, the later one takes another.
std::vector<ChatMessage> fitted(std::span<const ChatMessage> messages, const HistoryNeeds& needs);

/// For a template that knows neither tools nor calls: both become text. Results of tools are the user's words, those of
/// one turn in one message, as many templates want the roles in turn; each names its call. `messages`: fitted, with
/// objects.
std::vector<ChatMessage> in_plain_form(std::span<const ChatMessage> messages, std::span<const ToolSpec> tools);

/// For a template that takes one call a turn: of a turn with several each becomes a turn of its own, with its result
/// behind it.
std::vector<ChatMessage> with_one_call_a_turn(std::vector<ChatMessage> messages);

/// Which system messages a template writes; others it refuses, or leaves out.
struct SystemPlaces {
  bool several = true;  ///< at the beginning
  bool later = true;    ///< behind the user's words
};

/// For a template that has no place for some system messages (of developers, too): those at the beginning become one,
/// later ones the user's message, between tags.
std::vector<ChatMessage> with_system_in_place(std::vector<ChatMessage> messages, SystemPlaces places);

/// For a template that wants the user and the assistant in turn: messages of one in a row become one, and behind tools'
/// results the assistant says a word before the user does.
std::vector<ChatMessage> in_turns(std::vector<ChatMessage> messages);

/// An id for a call that has none: `own`, which no other call has, in the template's form. `name`: of the tool; `nth`:
/// of the conversation's calls.
std::string call_id(CallIds form, const std::string& own, const std::string& name, std::size_t nth);

}  // namespace coppice::text
