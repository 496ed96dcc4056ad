// Metrics: what /metrics says, in Prometheus' text format.
//
// Belongs to the io thread (prometheus-cpp's own objects are thread safe). The engine's figures are not
// counted twice: each scrape reads its snapshot.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

#include "engine/engine.h"
#include "server/api/engine_metrics.h"
#include "server/http/http.h"
#include "server/jobs/reply_loop.h"

namespace coppice::server {

class Metrics final : public ReplyObserver {
 public:
  Metrics();

  void count_request(const std::string& endpoint, int status);
  /// Of an HTTP request, once: however many prompts it has, and whether the server refuses it or the engine one of them.
  void count_rejected(Rejection why) { ++rejections_[static_cast<std::size_t>(why)]; }
  void count_rejected(engine::Refusal why) override { ++rejections_[static_cast<std::size_t>(why)]; }
  void count_client_gone() { clients_gone_.Increment(); }
  /// A request's body waits for the worker; end: the request goes on to the engine, or is refused or answered.
  void begin_preparation() { preparing_.Increment(); }
  /// `seconds`: since its last byte.
  void end_preparation(double seconds) {
    preparing_.Decrement();
    preparation_.Observe(seconds);
  }
  void observe_first_token(double seconds) override { first_token_.Observe(seconds); }
  void observe_request(double seconds, double decode_seconds, int tokens) override;

  /// `snapshot`: null while the model is loading.
  std::string scrape(const engine::Snapshot* snapshot, const HttpFigures& http) const;

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Counter& clients_gone_;
  prometheus::Gauge& preparing_;
  prometheus::Histogram& preparation_;
  prometheus::Histogram& first_token_;
  prometheus::Histogram& per_token_;
  prometheus::Histogram& request_;
  Rejections rejections_{};
};

}  // namespace coppice::server
