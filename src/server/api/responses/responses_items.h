// The items that conversations of OpenAI's Responses API are made of: to messages, and to what is kept of them.
//
// Each throws RequestError that names the field.
#pragma once

#include <string>
#include <vector>

#include "server/api/base/json_fields.h"
#include "server/api/base/picture_fields.h"
#include "server/api/responses/response_store.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// Items become messages: what the assistant thought, said and called in one turn are one.
class Turns {
 public:
  explicit Turns(int most_pictures) : pictures_(most_pictures) {}

  void add(const JsonFields& item);
  void add_text(std::string role, std::string text);
  bool sees() const { return pictures_.sees(); }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  Message& assistant(bool same_turn);
  void add_message(const JsonFields& item);

  std::vector<Message> messages_;
  PictureFields pictures_;
  std::string reasoning_;  ///< of the assistant's next message
};

/// All that Turns reads of it, in the API's full form, with an id. REQUIRES: Turns took it.
/// `sees`: pictures in tools' results are kept, too.
ConversationItem kept_item(const JsonObject& item, bool sees);

/// The user's text, as an item.
JsonObject text_item(std::string text);

}  // namespace coppice::server
