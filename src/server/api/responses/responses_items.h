// The items that conversations of OpenAI's Responses API are made of: to messages, and to what is kept of them.
//
// Each throws RequestError that names the field.
#pragma once

#include <string>
#include <vector>

#include "server/api/base/json_fields.h"
#include "server/api/responses/response_store.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// Items become messages: what the assistant thought, said and called in one turn are one.
class Turns {
 public:
  void add(const JsonFields& item);
  void add_text(std::string role, std::string text);
  std::vector<Message> take() { return std::move(messages_); }

 private:
  Message& assistant(bool same_turn);
  void add_message(const JsonFields& item);

  std::vector<Message> messages_;
  std::string reasoning_;  ///< of the assistant's next message
};

/// All that Turns reads of it, in the API's full form, with an id. REQUIRES: Turns took it.
ConversationItem kept_item(const JsonObject& item);

/// The user's text, as an item.
JsonObject text_item(std::string text);

}  // namespace coppice::server
