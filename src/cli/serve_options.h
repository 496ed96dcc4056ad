// The options of `coppice serve`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/kv_events.h"
#include "cli/kv_tier.h"
#include "engine/engine.h"
#include "executor/ggml/ggml_executor.h"
#include "server/server.h"
#include "vision/pictures.h"

namespace CLI {
class App;
}

namespace coppice::cli {

struct ServeOptions {
  std::string model;               ///< a file, a folder or a local model's name
  std::vector<std::string> names;  ///< to serve it by
  std::string mmproj;              ///< empty: what lies beside the model
  bool looks_for_mmproj = true;
  std::string found_mmproj;  ///< beside the model
  vision::ProjectorOptions projector;
  vision::Pictures::Limits pictures;
  std::optional<std::size_t> image_cache;  ///< pictures.row_bytes; none: by what is free
  int most_pictures = 100;                 ///< in a request
  std::string chat_template;
  std::string chat_variables;  ///< JSON; empty: none
  std::string reasoning = "auto";
  bool continues_assistant = false;
  bool names_in_content = false;
  std::string pooling;  ///< empty: the file's
  std::string share = "on";
  std::string isolate = "none";
  std::string cache_report;  ///< empty: by the other options
  std::string log_level = "info";
  std::string device = "auto";
  std::string numa = "none";
  std::int32_t context = 0;        ///< 0: the model's, as far as the pool holds
  std::optional<int> step_tokens;  ///< engine.step_tokens; none: what suits the device
  executor::GgmlOptions ggml;
  engine::EngineConfig engine;
  TierOptions tier;
  KvEventOptions events;
  server::ServerConfig server;
};

void add_serve_options(CLI::App& command, ServeOptions& options);

}  // namespace coppice::cli
