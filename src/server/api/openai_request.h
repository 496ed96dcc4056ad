// The bodies of /v1/chat/completions and /v1/completions, read as a GenerationRequest.
//
// Parsing throws RequestError that names the field: a wrong type, a value out of range, or a field that OpenAI knows and this
// server doesn't have yet. Fields that nobody knows are ignored; null counts as absent.
#pragma once

#include <cstdint>
#include <vector>

#include "server/api/dialect.h"
#include "server/api/json.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

enum class Endpoint : std::uint8_t { kChat, kCompletions };

/// Throws RequestError.
GenerationRequest parse_openai_request(Endpoint endpoint, const JsonObject& body, const RequestLimits& limits);

/// The messages of a chat, which /tokenize accepts too. Throws RequestError.
std::vector<Message> parse_messages(const Json& messages);

}  // namespace coppice::server
