// LlamaDialect: llama-server's own POST /completion (and /completions without "/v1"), in its fields and its answers.
//
// Its samplers that this server doesn't have are refused by name, unless they are switched off. Slots, and all that
// shifts a context, have no meaning here: such fields are ignored (docs/api.md).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/base/dialect.h"

namespace coppice::server {

/// What the answer's form depends on.
struct LlamaForm {
  bool return_tokens = false;
  bool list = false;                         ///< a list of answers, though it may be of one
  std::vector<std::string> response_fields;  ///< empty: all
  std::vector<kv::Token> never;              ///< end tokens that `ignore_eos` bars
};

class LlamaDialect final : public Dialect {
 public:
  GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const override;
  int max_prompts() const override { return kMaxPrompts; }
  std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                AnswerHead head) const override;
  std::string_view id_prefix() const override { return "cmpl-"; }
  std::string error(const RequestError& error) const override;
};

/// {"error": {"code": HTTP's status, "message", "type"}}
std::string llama_error(const RequestError& error);

/// A request that says nothing, with llama-server's defaults.
GenerationRequest llama_defaults(const GenerationDefaults& operators);

/// "generation_settings"
JsonObject llama_settings(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                          std::int32_t context_length);

}  // namespace coppice::server
