// What a body may hold, as the model's context and the operator's queue allow it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "server/api/dialect.h"
#include "server/api/json_fields.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// Enough for as many messages as the context has tokens, and for `prompts` token arrays as long as the context.
inline JsonLimits json_limits(const ModelFacts& facts, int prompts) {
  constexpr std::size_t kMessageParts = 12;  // an object of name, role and content, that a list of one part of text
  const auto context = static_cast<std::size_t>(facts.context_length);
  JsonLimits limits;
  limits.parts += kMessageParts * context;
  limits.elements += std::max(kMessageParts, static_cast<std::size_t>(prompts)) * context;
  return limits;
}

/// More prompts than can wait and run could never all be let in, however often they are sent.
inline RequestLimits request_limits(const ModelFacts& facts) {
  const int waiting = static_cast<int>(std::min(facts.max_waiting, std::size_t{kMaxPrompts}));
  return {.n_vocab = facts.n_vocab,
          .max_choices = facts.max_batch,
          .max_prompts = std::min(waiting + facts.max_batch, kMaxPrompts)};
}

}  // namespace coppice::server
