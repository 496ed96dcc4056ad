// Metrics: what /metrics says, in Prometheus' text format. The names are vLLM's where it has the same thing, with
// coppice_ for vllm:. And the engine's figures as /v1/cache/stats has them; docs/api.md "Figures" defines them.
//
// Belongs to the io thread. The engine's figures are not counted twice: each scrape reads its snapshot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "check/assert.h"
#include "check/thread_role.h"
#include "engine/histogram.h"
#include "engine/request.h"
#include "engine/snapshot.h"
#include "server/api/responses/response_store.h"
#include "server/http/http.h"
#include "server/jobs/model.h"
#include "server/jobs/reply_loop.h"
#include "vision/pictures.h"

namespace coppice::server {

/// Why an HTTP request was refused: the engine's reasons, as engine::Refusal has them, and those of the server, which
/// refuses for three of the engine's too.
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

/// Of a refusal with this HTTP status. `draining`: the server is.
Rejection rejection_of(int status, bool draining);

class Metrics final : public ReplyObserver {
 public:
  void count_request(const std::string& endpoint, int status) {
    COPPICE_ASSERT(io_thread_.mine());
    ++requests_[{endpoint, status}];
  }
  /// Of an HTTP request, once: however many prompts it has, and whether the server refuses it or the engine one of
  /// them.
  void count_rejected(Rejection why) {
    COPPICE_ASSERT(io_thread_.mine());
    ++rejections_[static_cast<std::size_t>(why)];
  }
  void count_rejected(engine::Refusal why) override { count_rejected(static_cast<Rejection>(why)); }
  void count_client_gone() {
    COPPICE_ASSERT(io_thread_.mine());
    ++clients_gone_;
  }
  /// A request's body waits for the worker; end: the request goes on to the engine, or is refused or answered.
  void begin_preparation() {
    COPPICE_ASSERT(io_thread_.mine());
    ++preparing_;
  }
  /// `seconds`: since its last byte.
  void end_preparation(double seconds) {
    COPPICE_ASSERT(io_thread_.mine());
    --preparing_;
    preparation_.add(seconds);
  }
  void observe_first_token(double seconds) override {
    COPPICE_ASSERT(io_thread_.mine());
    first_token_.add(seconds);
  }
  void observe_request(double seconds, double decode_seconds, int tokens) override {
    COPPICE_ASSERT(io_thread_.mine());
    request_.add(seconds);
    if (tokens > 1) per_token_.add(decode_seconds / (tokens - 1));
  }

  /// `snapshot`: null while the model is loading.
  std::string scrape(const engine::Snapshot* snapshot, const HttpFigures& http, const ResponseStoreFigures& responses,
                     const vision::PictureFigures& images = {}, const std::string& model = "") const;

 private:
  check::ThreadRole io_thread_;
  std::map<std::pair<std::string, int>, std::int64_t> requests_;  ///< by path and status
  std::array<std::int64_t, engine::kRefusals + 5> rejections_{};  ///< by Rejection
  std::int64_t clients_gone_ = 0;
  int preparing_ = 0;
  engine::Histogram preparation_{engine::kRequestBounds};
  engine::Histogram first_token_{engine::kRequestBounds};
  engine::Histogram per_token_{engine::kTokenBounds};
  engine::Histogram request_{engine::kRequestBounds};
};

/// The body of /v1/cache/stats.
std::string cache_stats_json(const engine::Snapshot& snapshot, const ModelFacts& facts, const std::string& model);

}  // namespace coppice::server
