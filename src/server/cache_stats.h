// The body of /v1/cache/stats: figures as docs/architecture.md "Figures" defines them.
#pragma once

#include <string>

#include "engine/engine.h"
#include "server/model.h"

namespace coppice::server {

std::string cache_stats_json(const engine::Snapshot& snapshot, const ModelFacts& facts, const std::string& model);

}  // namespace coppice::server
