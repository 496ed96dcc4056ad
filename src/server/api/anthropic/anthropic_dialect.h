// AnthropicDialect: Anthropic's Messages API.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/anthropic/anthropic_answer.h"
#include "server/api/anthropic/anthropic_request.h"
#include "server/api/base/dialect.h"

namespace coppice::server {

class AnthropicDialect final : public Dialect {
 public:
  /// `keeps_billing`: see parse_anthropic_request().
  explicit AnthropicDialect(bool keeps_billing = false) : keeps_billing_(keeps_billing) {}

  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override {
    return parse_anthropic_request(body, limits, keeps_billing_);
  }
  std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& /*sampling*/,
                                AnswerHead head) const override {
    if (terms.stream) return std::make_unique<AnthropicStream>(std::move(head));
    return std::make_unique<AnthropicBody>(std::move(head));
  }
  std::string_view id_prefix() const override { return "msg_"; }
  std::string error(const RequestError& error) const override { return anthropic_error(error); }

 private:
  bool keeps_billing_;
};

}  // namespace coppice::server
