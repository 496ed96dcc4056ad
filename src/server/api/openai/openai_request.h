// The bodies of /v1/chat/completions and /v1/completions, read as a GenerationRequest.
//
// Parsing throws RequestError that names the field: a wrong type, a value out of range, or a field that OpenAI knows
// and this server doesn't have yet. Fields that nobody knows are ignored; null counts as absent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/api/base/dialect.h"
#include "server/api/base/json.h"
#include "server/api/base/json_fields.h"
#include "server/api/base/picture_fields.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

enum class Endpoint : std::uint8_t { kChat, kCompletions };

/// Throws RequestError.
GenerationRequest parse_openai_request(Endpoint endpoint, const JsonObject& body, const RequestLimits& limits);

/// Refuses fields that change answers and that this server doesn't have, also where a chat is only counted.
void refuse_unbuilt_fields(const JsonFields& f);

/// The messages of a chat, which /tokenize accepts too. Throws RequestError.
std::vector<Message> parse_messages(const Json& messages, int most_pictures = 0);
/// A message's "content": a text, or a list of parts. Throws RequestError that names `path`.
std::vector<ContentPart> parse_content(const Json& content, const std::string& path, PictureFields& pictures);

/// The same of a message. The assistant's may be a `refusal`, which is its text, or `thinking`, which is added to its
/// reasoning; what a tool's result holds besides text and pictures is left out (left_out.h), pictures too where the
/// model sees none.
void parse_content(const Json& content, const std::string& path, PictureFields& pictures, Message& to);
/// "add_generation_prompt" and "continue_final_message"; `continues`: an assistant's last message goes on if the
/// request has neither. Throws RequestError. REQUIRES: parse_messages() made them.
text::TurnEnd parse_turn_end(const JsonFields& f, std::span<const Message> messages, bool continues);

}  // namespace coppice::server
