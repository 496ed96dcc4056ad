// prepare(): from the body of an OpenAI request to engine requests, all steps at once.
#pragma once

#include <string_view>

#include "server/api/base/json_fields.h"
#include "server/api/openai/openai_dialect.h"
#include "server/jobs/preparation.h"

namespace coppice::testing {

inline server::Prepared prepare(server::Model& model, const server::Dialect& dialect, std::string_view body) {
  const auto json = server::parse_body(body, server::json_limits(model.facts().context_length, dialect.max_prompts()));
  server::Preparation preparation(model, dialect.parse(json, server::request_limits(model.facts())));
  if (preparation.wants_grammar()) preparation.compile_grammar();
  while (!preparation.step()) {
  }
  server::Prepared prepared = preparation.take();
  while (preparation.wants_rows()) preparation.encode([] { return vision::Wanted::kByCaller; });
  preparation.add_rows(prepared.requests);
  return prepared;
}

inline server::Prepared prepare(server::Model& model, server::Endpoint endpoint, std::string_view body) {
  return prepare(model, server::OpenAiDialect(endpoint), body);
}

}  // namespace coppice::testing
