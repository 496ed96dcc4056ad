// llama-server's figures of an answer that is under way, in whichever API asks for them by llama-server's fields.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/request.h"
#include "server/api/base/json.h"
#include "server/api/base/json_fields.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// "return_progress" and "timings_per_token". Throws RequestError.
Telemetry parse_telemetry(const JsonFields& f);

/// "timings": `n_generated` tokens came of the prompt that `usage` is about. The first token counts to the prompt.
JsonObject llama_timings(const engine::Usage& usage, std::size_t n_generated);

/// A stream's event about its prompt: "prompt_progress", and "timings" if they are asked for, too.
void add_progress(JsonObject& event, const engine::Progress& progress, const Telemetry& asked);

/// "timings" of all samples of a prompt, if they are asked for and known.
void add_timings(JsonObject& to, const std::optional<engine::Usage>& usage, const Telemetry& asked);

}  // namespace coppice::server
