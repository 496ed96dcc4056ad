// OpenAiDialect: OpenAI's chat completions and completions, with fields of vLLM and llama-server.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/api/dialect.h"
#include "server/api/openai_request.h"

namespace coppice::server {

class OpenAiDialect final : public Dialect {
 public:
  explicit OpenAiDialect(Endpoint endpoint) : endpoint_(endpoint) {}

  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override;
  int max_prompts() const override { return endpoint_ == Endpoint::kChat ? 1 : kMaxPrompts; }
  std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                AnswerHead head) const override;
  std::string_view id_prefix() const override { return endpoint_ == Endpoint::kChat ? "chatcmpl-" : "cmpl-"; }
  std::string error(const RequestError& error) const override;

 private:
  Endpoint endpoint_;
};

}  // namespace coppice::server
