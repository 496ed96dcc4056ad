// Dialect: one API that clients speak: how it writes requests, answers and errors. All else is neutral:
// GenerationRequest in, deltas, usage and RequestError out.
//
// To add one, implement this in a folder of its own (as anthropic/: a request, an answer, the dialect) and give it a
// path in Api's constructor. Neither http/, jobs/ nor the engine know dialects, so none of them changes.
// tests/server/api/dialect_test.cpp adds a tiny one.
//
// Thread safety: const methods may be called by any thread; parse() is called on workers, several at once; the rest on
// the io thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/base/cache_report_json.h"
#include "server/api/base/generation_defaults.h"
#include "server/api/base/json.h"
#include "server/base/request_error.h"
#include "server/jobs/answer.h"
#include "server/jobs/generation_request.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// Prompts of one request that are to be continued: each waits by itself in the queue, of which nobody should have more
/// than a small part.
inline constexpr int kMaxPrompts = 128;
/// Prompts times n of one request. Api checks it.
inline constexpr int kMaxChoicesPerRequest = 1024;

/// What a parser must know of the model and of the operator's wishes.
struct RequestLimits {
  std::int32_t n_vocab = 0;
  std::span<const kv::Token> end_tokens;
  int n_embd = 0;        ///< values of an embedding; 0: the model gives none
  int max_choices = 32;  ///< of `n`: the samples of one prompt run together
  int max_prompts = kMaxPrompts;
  GenerationDefaults defaults;
  bool continues_assistant = false;  ///< ModelFacts'
  int most_pictures = 0;             ///< ModelFacts'
  std::string_view tenant;           ///< HttpRequest's: whose request it is
};

/// More prompts than can wait and run could never all be let in, however often they are sent. `most`: of the API.
inline RequestLimits request_limits(const ModelFacts& facts, int most = kMaxPrompts,
                                    const GenerationDefaults& defaults = {}) {
  const int waiting = static_cast<int>(std::min(facts.max_waiting, static_cast<std::size_t>(most)));
  return {.n_vocab = facts.n_vocab,
          .end_tokens = facts.end_tokens,
          .n_embd = facts.n_embd,
          .max_choices = facts.max_batch,
          .max_prompts = std::min(waiting + facts.max_batch, most),
          .defaults = defaults,
          .continues_assistant = facts.continues_assistant,
          .most_pictures = facts.most_pictures};
}

/// What an answer is made of besides its deltas.
struct AnswerHead {
  std::string id;            ///< id_prefix() and a random number
  std::int64_t created = 0;  ///< seconds since 1970
  std::string model;         ///< the name that the client may know it by
  std::string fingerprint;   ///< of server and model: another one may answer differently
  std::int32_t context_length = 0;
  int n_choices = 1;
  int n_prompts = 1;
  int prompt_tokens = 0;             ///< of all prompts
  std::vector<std::string> prompts;  ///< as the model gets them; one for each prompt, or none
  std::vector<std::string> echoes;   ///< go before the text of each of a prompt's choices; one for each prompt, or none
  CacheReporting reporting;
};

class Dialect {
 public:
  virtual ~Dialect() = default;

  /// Throws RequestError that names a field: of a wrong type, out of range, or one that would change the answer and
  /// that this server doesn't have.
  virtual GenerationRequest parse(const JsonObject& body, const RequestLimits& limits) const = 0;
  /// How many prompts a body may hold, at most.
  virtual int max_prompts() const { return 1; }

  /// Opens the answer, a stream if `terms.stream`. `terms` and `sampling`: as parse() made them.
  virtual std::unique_ptr<Answer> begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                        AnswerHead head) const = 0;
  /// What the ids of its answers begin with: "cmpl-".
  virtual std::string_view id_prefix() const = 0;

  /// The body of a reply that refuses a request: JSON. Its status and head are the caller's.
  virtual std::string error(const RequestError& error) const = 0;
};

}  // namespace coppice::server
