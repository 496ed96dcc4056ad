#include "server/api/openai_dialect.h"

#include <utility>

#include "server/api/openai_answer.h"

namespace coppice::server {

GenerationRequest OpenAiDialect::parse(const JsonObject& body, const RequestLimits& limits) const {
  return parse_openai_request(endpoint_, body, limits);
}

std::unique_ptr<Answer> OpenAiDialect::begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                             AnswerHead head) const {
  const bool with_logprobs = sampling.logprobs >= 0;
  if (terms.stream)
    return std::make_unique<OpenAiStream>(endpoint_, std::move(head), with_logprobs, terms.stream_usage);
  return std::make_unique<OpenAiBody>(endpoint_, std::move(head), with_logprobs);
}

std::string OpenAiDialect::error(const RequestError& error) const {
  return openai_error(error);
}

}  // namespace coppice::server
