#include "server/api/metrics.h"

#include <prometheus/text_serializer.h>

#include <span>
#include <sstream>
#include <vector>

namespace coppice::server {

namespace {

prometheus::Histogram::BucketBoundaries bounds(std::span<const double> of) {
  return {of.begin(), of.end()};
}

}  // namespace

Metrics::Metrics()
    : requests_(prometheus::BuildCounter()
                    .Name("coppice_http_requests_total")
                    .Help("HTTP requests answered, by path and status.")
                    .Register(registry_)),
      clients_gone_(prometheus::BuildCounter()
                        .Name("coppice_clients_gone_total")
                        .Help("Requests whose client left before the end, or read too slowly.")
                        .Register(registry_)
                        .Add({})),
      preparing_(prometheus::BuildGauge()
                     .Name("coppice_num_requests_preparing")
                     .Help("Requests whose bodies wait for the worker, or are on it.")
                     .Register(registry_)
                     .Add({})),
      preparation_(prometheus::BuildHistogram()
                       .Name("coppice_request_preparation_time_seconds")
                       .Help("From a request's last byte until its body is tokenized, or refused.")
                       .Register(registry_)
                       .Add({}, bounds(engine::kRequestBounds))),
      first_token_(prometheus::BuildHistogram()
                       .Name("coppice_time_to_first_token_seconds")
                       .Help("From a request's last byte to its first token.")
                       .Register(registry_)
                       .Add({}, bounds(engine::kRequestBounds))),
      per_token_(prometheus::BuildHistogram()
                     .Name("coppice_request_time_per_output_token_seconds")
                     .Help("A request's time from its first token to its last, per further token.")
                     .Register(registry_)
                     .Add({}, bounds(engine::kTokenBounds))),
      request_(prometheus::BuildHistogram()
                   .Name("coppice_e2e_request_latency_seconds")
                   .Help("From a request's last byte to its last token.")
                   .Register(registry_)
                   .Add({}, bounds(engine::kRequestBounds))) {}

void Metrics::count_request(const std::string& endpoint, int status) {
  requests_.Add({{"path", endpoint}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::observe_request(double seconds, double decode_seconds, int tokens) {
  request_.Observe(seconds);
  if (tokens > 1) per_token_.Observe(decode_seconds / (tokens - 1));
}

std::string Metrics::scrape(const engine::Snapshot* snapshot, const HttpFigures& http) const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  add_gauge(families, "coppice_ready", "1 when the model is loaded.", snapshot != nullptr ? 1 : 0);
  add_gauge(families, "coppice_connections", "Open connections.", static_cast<double>(http.connections));
  add_gauge(families, "coppice_http_body_bytes", "Bytes of request bodies that arrive or wait to be read.",
            static_cast<double>(http.body_bytes));
  add_rejections(families, rejections_);
  if (snapshot != nullptr) add_engine_metrics(families, *snapshot);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace coppice::server
