// The JSON of GET /v1/cache/tree and of the frames of GET /v1/cache/events (docs/api.md).
#pragma once

#include <string>

#include "engine/view.h"
#include "server/api/base/api_config.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// `reports`: whether the nodes' texts may be shown.
std::string tree_json(const engine::View& view, const Model& model, CacheReports reports);

/// All that the page shows. Prompts' texts, in nodes and in reports, only if `config` lets them out to others.
std::string frame_json(const engine::View& view, const engine::Snapshot& figures, const Model& model,
                       const ApiConfig& config);

}  // namespace coppice::server
