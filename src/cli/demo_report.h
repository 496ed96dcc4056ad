// What the demo found, and its two forms: a table for people and JSON for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/load.h"

namespace coppice::cli {

/// One run of the load. Token counts and the peak come from the server's /v1/cache/stats, times from the
/// client.
struct DemoRun {
  std::int64_t prompt_tokens = 0;
  std::int64_t computed_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t kv_bytes_peak = 0;
  LoadResult load;
};

struct DemoReport {
  std::string model;
  std::vector<std::string> questions;
  DemoRun on;   ///< sharing on
  DemoRun off;  ///< sharing off

  /// Requests whose text is the same in both runs.
  int identical_answers() const;
  std::string table() const;
  nlohmann::ordered_json json() const;
};

}  // namespace coppice::cli
