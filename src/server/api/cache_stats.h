// The body of /v1/cache/stats: figures as docs/api.md "Figures" defines them.
#pragma once

#include <string>

#include "engine/engine.h"
#include "server/jobs/model.h"

namespace coppice::server {

std::string cache_stats_json(const engine::Snapshot& snapshot, const ModelFacts& facts, const std::string& model);

}  // namespace coppice::server
