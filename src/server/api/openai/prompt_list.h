// The forms of a prompt that llama-server takes, for completions and for embeddings.
#pragma once

#include <string>
#include <vector>

#include "server/api/base/dialect.h"
#include "server/api/base/json.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// A prompt: a text; a list of token ids, or of ids and texts; {"prompt_string": text}; {"content": [parts that are
/// text]}. Or a list of prompts, at least one. Throws RequestError that names `path`.
std::vector<Prompt> parse_prompt_list(const Json& value, const std::string& path, const RequestLimits& limits);

}  // namespace coppice::server
