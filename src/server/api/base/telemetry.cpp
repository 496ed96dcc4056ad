#include "server/api/base/telemetry.h"

#include <algorithm>

namespace coppice::server {

Telemetry parse_telemetry(const JsonFields& f) {
  return {.progress = f.boolean("return_progress").value_or(false),
          .timings = f.boolean("timings_per_token").value_or(false)};
}

JsonObject llama_timings(const engine::Usage& usage, std::size_t n_generated) {
  const auto per = [](double what, double n) { return n > 0 ? what / n : 0.0; };
  const int n_prompt = usage.prompt_tokens - usage.cached_tokens;
  const double n = static_cast<double>(n_generated);
  const double prompt_ms = usage.prompt_seconds * 1e3, ms = usage.decode_seconds * 1e3;
  // The first token comes with the prompt's last step.
  const double steps = std::max(n - 1, 0.0);
  return {{"cache_n", usage.cached_tokens},
          {"prompt_n", n_prompt},
          {"prompt_ms", prompt_ms},
          {"prompt_per_token_ms", per(prompt_ms, n_prompt)},
          {"prompt_per_second", per(n_prompt * 1e3, prompt_ms)},
          {"predicted_n", n_generated},
          {"predicted_ms", ms},
          {"predicted_per_token_ms", per(ms, steps)},
          {"predicted_per_second", steps > 0 ? per(steps * 1e3, ms) : 0.0}};
}

void add_progress(JsonObject& event, const engine::Progress& progress, const Telemetry& asked) {
  engine::Usage usage = progress.usage;
  event["prompt_progress"] = JsonObject{{"total", usage.prompt_tokens},
                                        {"cache", usage.cached_tokens},
                                        {"processed", progress.computed},
                                        {"time_ms", usage.prompt_seconds * 1e3}};
  if (!asked.timings) return;
  usage.prompt_tokens = progress.computed;
  event["timings"] = llama_timings(usage, 0);
}

void add_timings(JsonObject& to, const std::optional<engine::Usage>& usage, const Telemetry& asked) {
  if (asked.timings && usage) to["timings"] = llama_timings(*usage, static_cast<std::size_t>(usage->completion_tokens));
}

}  // namespace coppice::server
