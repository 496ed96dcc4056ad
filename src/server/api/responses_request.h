// Requests of OpenAI's Responses API.
#pragma once

#include "server/api/dialect.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// What the answer repeats of the request is the result's `own`, a JsonObject. Throws RequestError that names the field. Tools that OpenAI hosts are left out, and logged once.
GenerationRequest parse_responses_request(const JsonObject& body, const RequestLimits& limits);

}  // namespace coppice::server
