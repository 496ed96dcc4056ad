// The fields of requests that several APIs have under the same names: what the sampler is asked for.
//
// Each function throws RequestError that names the field.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/api/base/dialect.h"
#include "server/api/base/json_fields.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// llama-server's word for "any seed".
inline constexpr std::int64_t kRandomSeed = 0xFFFFFFFF;

/// What an operator sets for requests that say nothing; an API's own default holds where this doesn't.
void apply_defaults(const GenerationDefaults& defaults, GenerationRequest& r);

/// Reads all options of the sampler but `logprobs` into `r`, which holds their defaults. Of llama-server's and vLLM's
/// names for the same thing either is taken.
void parse_sampling_fields(const JsonFields& f, const RequestLimits& limits, GenerationRequest& r);

/// A string, or a list of up to 16, none of them empty or over sampling::kMaxStopBytes; none if the field isn't there.
std::vector<std::string> parse_stops(const JsonFields& f, const char* name);

/// A field that changes answers and that this server doesn't have.
struct UnbuiltField {
  const char* name;
  double off = 0;  ///< the value that changes nothing; false is 0, true 1
  enum class Also : std::uint8_t { kNothing, kBelow, kAbove } also = Also::kNothing;  ///< such values are off, too
};
/// Refuses those that are there with another value. Empty lists, objects and strings are off, whatever `off` says.
void refuse_unbuilt(const JsonFields& f, std::span<const UnbuiltField> fields);
/// Of llama-server's samplers and of vLLM's sampling parameters.
void refuse_unbuilt_samplers(const JsonFields& f);

/// Of OpenAI's and vLLM's fields those that other APIs have under other names, or not at all.
void refuse_openai_fields(const JsonFields& f);

/// {} and [] and "".
bool is_empty(const Json& value);

/// The first of these that is there: a number of tokens of the answer; -1: as far as the context goes, whatever the
/// operator's default. None of them: `r` keeps that. `least`: 0 where the prompt alone makes an answer.
void parse_max_tokens(const JsonFields& f, std::initializer_list<const char*> names, std::int64_t least,
                      GenerationRequest& r);

/// "prompt": a text, a list of texts, tokens, or a list of such lists.
std::vector<Prompt> parse_prompts(const JsonFields& f, const RequestLimits& limits);

/// "truncate_prompt_tokens".
void parse_truncation(const JsonFields& f, GenerationRequest& r);

/// "cache_prompt", "cache_salt", "cache_report", "priority", "timeout".
void parse_engine_fields(const JsonFields& f, GenerationRequest& r);

}  // namespace coppice::server
