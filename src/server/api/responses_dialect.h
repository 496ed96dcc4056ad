// ResponsesDialect: OpenAI's Responses API, without a store: each request brings its whole conversation.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/dialect.h"
#include "server/api/openai_answer.h"
#include "server/api/responses_answer.h"
#include "server/api/responses_request.h"

namespace coppice::server {

class ResponsesDialect final : public Dialect {
 public:
  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override {
    return parse_responses_request(body, limits);
  }
  std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                AnswerHead head) const override {
    JsonObject settings = *std::static_pointer_cast<const JsonObject>(terms.own);
    settings["temperature"] = sampling.temperature;
    settings["top_p"] = sampling.top_p;
    settings["max_output_tokens"] = terms.max_tokens ? Json(*terms.max_tokens) : Json(nullptr);
    settings["store"] = false;
    settings["truncation"] = "disabled";
    return std::make_unique<ResponsesAnswer>(std::move(head), terms.stream, std::move(settings));
  }
  std::string_view id_prefix() const override { return "resp_"; }
  std::string error(const RequestError& error) const override { return openai_error(error); }
};

}  // namespace coppice::server
