// OpenAiDialect: OpenAI's chat completions and completions, with fields of vLLM and llama-server.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/base/dialect.h"
#include "server/api/openai/openai_answer.h"
#include "server/api/openai/openai_request.h"

namespace coppice::server {

class OpenAiDialect final : public Dialect {
 public:
  explicit OpenAiDialect(Endpoint endpoint) : endpoint_(endpoint) {}

  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override {
    return parse_openai_request(endpoint_, body, limits);
  }
  int max_prompts() const override { return endpoint_ == Endpoint::kChat ? 1 : kMaxPrompts; }
  std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                AnswerHead head) const override {
    const bool with_logprobs = sampling.logprobs >= 0;
    const PromptLogprobs prompt{.in_echo = terms.echo ? sampling.logprobs : -1, .in_list = terms.prompt_logprobs};
    if (!terms.stream)
      return std::make_unique<OpenAiBody>(endpoint_, std::move(head), with_logprobs, prompt, terms.telemetry);
    return std::make_unique<OpenAiStream>(endpoint_, std::move(head), with_logprobs, terms.stream_usage,
                                          terms.telemetry);
  }
  std::string_view id_prefix() const override { return endpoint_ == Endpoint::kChat ? "chatcmpl-" : "cmpl-"; }
  std::string error(const RequestError& error) const override { return openai_error(error); }

 private:
  Endpoint endpoint_;
};

}  // namespace coppice::server
