// Requests of Anthropic's Messages API, and of its count of tokens.
#pragma once

#include <string>
#include <string_view>

#include "server/api/base/dialect.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// Throws RequestError that names the field. What hosted services do (web search, context management) is left out, and
/// logged once. `keeps_billing`: so are blocks that begin with x-anthropic-billing-header, unless they are kept.
GenerationRequest parse_anthropic_request(const JsonObject& body, const RequestLimits& limits,
                                          bool keeps_billing = false);

/// {"input_tokens"}: of the chat as the model gets it. `body`: a request without max_tokens.
std::string anthropic_count_reply(const Model& model, std::string_view body);
/// The same with blocks that begin with x-anthropic-billing-header.
std::string anthropic_whole_count_reply(const Model& model, std::string_view body);

}  // namespace coppice::server
