// What a client, or the log, is told of why a prefix did not match further.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "kv/text.h"
#include "server/api/base/api_config.h"
#include "server/api/base/json.h"
#include "server/jobs/answer.h"
#include "server/jobs/model.h"
#include "server/jobs/prompt_pictures.h"

namespace coppice::server {

/// What people are shown of a text; where an image stands, or a tile of one: "[image 512x384, 64 tokens]".
std::string shown_text(const Model& model, kv::TextView shown);

/// {"prompt_tokens", "matched_tokens", "ended", "why", "text": {"before", "asked", "found"}, "lost_tokens",
/// "lost_seconds"}, and what was loaded of the matched ones, if any was: "loaded_tokens", "loaded_seconds". "found"
/// only where the text differs, and with kText. `images`: of the prompt.
JsonObject cache_report_json(const engine::CacheReport& report, const Model& model, CacheReports how,
                             std::span<const PicturePlace> images = {});

/// How an answer's reports become text.
struct CacheReporting {
  bool wanted = false;  ///< by the request
  const Model* model = nullptr;
  CacheReports how = CacheReports::kText;
  std::vector<PicturePlace> images = {};  ///< of an answer's only prompt
};

/// Those of an answer's prompts: an object, or a list where there are several; null where none was asked for, and for a
/// prompt that has none.
Json cache_reports_json(CacheReportList reports, const CacheReporting& reporting);

/// A line in the debug log: always with the texts, the log is the operator's.
void log_cache_report(engine::RequestId id, const engine::CacheReport& report, const Model& model);

}  // namespace coppice::server
