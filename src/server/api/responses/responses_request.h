// Requests of OpenAI's Responses API.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/api/base/dialect.h"
#include "server/api/responses/response_store.h"
#include "server/http/http.h"
#include "server/jobs/generation_request.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// What the answer needs of its request.
struct ResponseTerms {
  std::string repeated;  ///< what it tells of the request: an object's fields as JSON, without the braces
  std::shared_ptr<StoredResponse> stored;  ///< to be finished; null: it is not to be stored, or there is no room
};

/// The result's `own` is a ResponseTerms. Throws RequestError that names the field. Tools that OpenAI hosts are left
/// out, and logged once.
GenerationRequest parse_responses_request(const JsonObject& body, const RequestLimits& limits, ResponseStore& store);

/// {"object", "input_tokens"}: of the input as the model gets it, however long it is. Nothing of the request is stored.
std::string response_count_reply(const Model& model, const HttpRequest& request, ResponseStore& store);

}  // namespace coppice::server
