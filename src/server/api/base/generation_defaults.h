// What the operator sets for requests that don't say.
#pragma once

#include <cstdint>
#include <optional>

namespace coppice::server {

struct GenerationDefaults {
  std::optional<float> temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k;
  std::optional<std::uint64_t> seed;
  std::optional<std::int32_t> max_tokens, thought_budget;
};

}  // namespace coppice::server
