// ResponsesDialect: OpenAI's Responses API. Api has the routes to what is stored.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/base/dialect.h"
#include "server/api/openai/openai_answer.h"
#include "server/api/responses/responses_answer.h"
#include "server/api/responses/responses_request.h"

namespace coppice::server {

class ResponsesDialect final : public Dialect {
 public:
  /// The store outlives it and its answers.
  explicit ResponsesDialect(ResponseStore& store) : store_(store) {}

  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override {
    return parse_responses_request(body, limits, store_);
  }
  std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                AnswerHead head) const override {
    const auto own = std::static_pointer_cast<const ResponseTerms>(terms.own);
    JsonObject settings;
    settings["temperature"] = sampling.temperature;
    settings["top_p"] = sampling.top_p;
    settings["max_output_tokens"] = terms.max_tokens ? Json(*terms.max_tokens) : Json(nullptr);
    settings["store"] = own->stored != nullptr;
    ResponsesAnswer::Store store;
    if (own->stored) {
      store = [&store = store_, response = own->stored](std::string id, std::string body,
                                                        std::vector<ConversationItem> output) {
        return store.finish(response, std::move(id), std::move(body), std::move(output));
      };
    }
    return std::make_unique<ResponsesAnswer>(std::move(head), terms.stream, std::move(settings), own->repeated,
                                             std::move(store), terms.telemetry);
  }
  std::string_view id_prefix() const override { return "resp_"; }
  std::string error(const RequestError& error) const override { return openai_error(error); }

 private:
  ResponseStore& store_;
};

}  // namespace coppice::server
