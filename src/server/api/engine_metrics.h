// The engine's figures in Prometheus' form. The names are vLLM's where it has the same thing, with coppice_ for vllm:.
#pragma once

#include <prometheus/metric_family.h>

#include <array>
#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "engine/snapshot.h"

namespace coppice::server {

/// Why an HTTP request was refused: the engine's reasons, as engine::Refusal has them, and those of the server, which refuses
/// for three of the engine's too.
enum class Rejection : std::uint8_t {
  kTooLong = static_cast<std::uint8_t>(engine::Refusal::kTooLong),
  kShutdown = static_cast<std::uint8_t>(engine::Refusal::kShutdown),
  kTimeout = static_cast<std::uint8_t>(engine::Refusal::kTimeout),
  kInvalid = engine::kRefusals,
  kUnauthorized,
  kTooLarge,
  kTooSlow,
  kUnavailable,
};
using Rejections = std::array<std::int64_t, engine::kRefusals + 5>;  ///< by reason

void add_rejections(std::vector<prometheus::MetricFamily>& out, const Rejections& rejections);

void add_engine_metrics(std::vector<prometheus::MetricFamily>& out, const engine::Snapshot& snapshot);

void add_gauge(std::vector<prometheus::MetricFamily>& out, const char* name, const char* help, double value);

}  // namespace coppice::server
