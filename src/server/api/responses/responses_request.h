// Requests of OpenAI's Responses API.
#pragma once

#include <memory>

#include "server/api/base/dialect.h"
#include "server/api/responses/response_store.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// What the answer needs of its request.
struct ResponseTerms {
  JsonObject repeated;                     ///< what it tells of the request
  std::shared_ptr<StoredResponse> stored;  ///< to be finished; null: it is not to be stored, or there is no room
};

/// The result's `own` is a ResponseTerms. Throws RequestError that names the field. Tools that OpenAI hosts are left out, and
/// logged once.
GenerationRequest parse_responses_request(const JsonObject& body, const RequestLimits& limits, ResponseStore& store);

}  // namespace coppice::server
