// EmbeddingDialect: OpenAI's POST /v1/embeddings, and llama-server's /embedding and /embeddings. Each takes the fields
// of both.
//
// Prompts go the way of all prompts, without a token to draw: the queue, the cache and its sharing are the same.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/api/base/dialect.h"
#include "server/api/embeddings/embedding_answer.h"

namespace coppice::server {

class EmbeddingDialect final : public Dialect {
 public:
  explicit EmbeddingDialect(EmbeddingForm form) : form_(form) {}

  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override;
  int max_prompts() const override { return kMaxChoicesPerRequest; }  // clients send lists of a thousand texts
  std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                AnswerHead head) const override;
  std::string_view id_prefix() const override { return "embd-"; }
  std::string error(const RequestError& error) const override;

 private:
  EmbeddingForm form_;
};

/// POST /rerank. Throws RequestError (501): no model that is served has a head that ranks.
std::string rerank_reply(const Model& model, std::string_view body);

}  // namespace coppice::server
