// The engine's figures in Prometheus' form. The names are vLLM's where it has the same thing, with coppice_ for vllm:.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "engine/snapshot.h"

namespace coppice::server {

void add_engine_metrics(std::vector<prometheus::MetricFamily>& out, const engine::Snapshot& snapshot);

void add_gauge(std::vector<prometheus::MetricFamily>& out, const char* name, const char* help, double value);

}  // namespace coppice::server
