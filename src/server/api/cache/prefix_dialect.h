// PrefixDialect: POST /v1/cache/prefixes. A request that computes a prefix, draws no token, and pins what it computed;
// so it waits, runs and is counted as any other. The answer is the pinned prefix.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/base/dialect.h"
#include "server/api/openai/openai_answer.h"

namespace coppice::server {

/// {"messages", "tools", ... | "prompt" | "text", "ttl", "name", "cache_salt"}. Throws RequestError.
GenerationRequest parse_prefix_request(const JsonObject& body, const RequestLimits& limits);

class PrefixBody final : public Answer {
 public:
  explicit PrefixBody(AnswerHead head) : head_(std::move(head)) {}
  std::string delta(Delta&&) override { return ""; }
  /// Throws RequestError: it could not be pinned.
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError& error) override { return openai_error(error); }

 private:
  AnswerHead head_;
};

class PrefixDialect final : public Dialect {
 public:
  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override {
    return parse_prefix_request(body, limits);
  }
  std::unique_ptr<Answer> begin(const GenerationTerms&, const sampling::SamplingParams&,
                                AnswerHead head) const override {
    return std::make_unique<PrefixBody>(std::move(head));
  }
  std::string_view id_prefix() const override { return "prefix-"; }
  std::string error(const RequestError& error) const override { return openai_error(error); }
};

}  // namespace coppice::server
