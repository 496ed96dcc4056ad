// What is told of the server besides answers: its models, llama-server's /props and /slots, vLLM's /tokenizer_info, its
// fingerprint.
#pragma once

#include <cstdint>
#include <string>

#include "engine/snapshot.h"
#include "server/api/base/api_config.h"
#include "server/api/base/json.h"
#include "server/base/request_error.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// OpenAI's fields, vLLM's `root` and `max_model_len`, and Anthropic's, which clash with none of them. `created`:
/// seconds since 1970. `facts`: null while the model is loading.
JsonObject model_json(const std::string& id, const std::string& root, std::int64_t created, const ModelFacts* facts);
/// {"object": "list", "data": [...], "first_id", "last_id", "has_more"}: all names, on one page.
std::string models_json(const ServedNames& names, std::int64_t created, const ModelFacts* facts);

/// {"default_generation_settings", "total_slots", "model_path", "model_alias", "chat_template", "modalities", ...}
std::string props_json(const ApiConfig& config, const ModelFacts& facts, bool asleep);
/// One entry for each sequence that can run at once: [{"id", "n_ctx", "speculative", "is_processing"}].
std::string slots_json(const ModelFacts& facts, const engine::Snapshot& snapshot);

/// vLLM's: what a client needs to use the tokenizer and the chat template from afar, in the words of Hugging Face's
/// configuration.
std::string tokenizer_info_json(const ModelFacts& facts);

/// SGLang's /get_model_info and /get_server_info, as far as its router reads them: which model a worker has, and how
/// much it takes.
std::string sglang_model_info_json(const ApiConfig& config);
std::string sglang_server_info_json(const ApiConfig& config, const ModelFacts& facts, const engine::Snapshot& snapshot);

/// 404: a request names a model that is not this one. It says how to take any name.
RequestError unknown_model(const std::string& name, const ServedNames& names);

/// Changes with all that may change what a seed gives: version, model, backend, KV format.
std::string fingerprint(const ApiConfig& config, const ModelFacts& facts);

}  // namespace coppice::server
