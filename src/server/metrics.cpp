#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <iterator>
#include <sstream>
#include <vector>

namespace coppice::server {

namespace {

using prometheus::MetricType;
using Families = std::vector<prometheus::MetricFamily>;

const prometheus::Histogram::BucketBoundaries kSeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                          1,     2.5,  5,     10,   30,  60,   120};
const prometheus::Histogram::BucketBoundaries kTokenSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                               0.1,   0.25,   0.5,   1,    2.5};

struct Sample {
  const char* label_value;
  double value;
};

/// One family; with more than one sample, `label` tells them apart.
void add(Families& out, MetricType type, const char* name, const char* help, const std::vector<Sample>& samples,
         const char* label = nullptr) {
  prometheus::MetricFamily family{name, help, type, {}};
  for (const Sample& s : samples) {
    prometheus::ClientMetric metric;
    if (label != nullptr) metric.label = {{label, s.label_value}};
    metric.counter.value = metric.gauge.value = s.value;  // the serializer reads the one that `type` names
    family.metric.push_back(std::move(metric));
  }
  out.push_back(std::move(family));
}

double num(auto x) {
  return static_cast<double>(x);
}

void add_cache(Families& out, const kv::CacheStats& c) {
  constexpr auto kGauge = MetricType::Gauge;
  constexpr auto kCounter = MetricType::Counter;
  add(out, kGauge, "coppice_kv_blocks", "Blocks of the pool by state; they sum to the pool's size.",
      {{"free", num(c.free)}, {"cached", num(c.cached)}, {"in_use", num(c.in_use)}}, "state");
  add(out, kGauge, "coppice_kv_blocks_shared", "Blocks held by two sequences or more.", {{"", num(c.shared)}});
  add(out, kGauge, "coppice_kv_block_max_refs", "Most sequences on one block.", {{"", num(c.max_refs)}});
  add(out, kGauge, "coppice_kv_bytes_budget", "Bytes of the pool.", {{"", num(c.bytes_budget)}});
  add(out, kGauge, "coppice_kv_bytes_in_use", "Bytes of blocks held by sequences.", {{"", num(c.bytes_in_use)}});
  add(out, kGauge, "coppice_kv_bytes_peak", "Most bytes in use since start.", {{"", num(c.bytes_peak)}});
  add(out, kCounter, "coppice_kv_forks_total", "Blocks copied before a write.", {{"", num(c.cow_forks)}});
  add(out, kCounter, "coppice_kv_evictions_total", "Cached blocks given up for new ones.", {{"", num(c.evictions)}});
}

Families engine_families(const engine::Snapshot& s) {
  constexpr auto kGauge = MetricType::Gauge;
  constexpr auto kCounter = MetricType::Counter;
  Families out;
  add_cache(out, s.cache);
  add(out, kCounter, "coppice_prompt_tokens_total", "Prompt tokens of admitted requests.",
      {{"", num(s.prompt_tokens)}});
  add(out, kCounter, "coppice_cached_tokens_total", "Prompt tokens found in the cache.", {{"", num(s.cached_tokens)}});
  add(out, kCounter, "coppice_computed_tokens_total", "Prompt tokens run through the model.",
      {{"", num(s.computed_tokens)}});
  add(out, kCounter, "coppice_generated_tokens_total", "Tokens generated.", {{"", num(s.generated_tokens)}});
  add(out, kCounter, "coppice_preemptions_total", "Requests preempted for want of blocks.", {{"", num(s.preemptions)}});
  add(out, kCounter, "coppice_engine_requests_submitted_total", "Requests that were handed to the engine.",
      {{"", num(s.requests_submitted)}});
  add(out, kCounter, "coppice_engine_requests_total", "Requests that left the engine, by outcome.",
      {{"finished", num(s.requests_finished)},
       {"cancelled", num(s.requests_cancelled)},
       {"refused", num(s.requests_refused)},
       {"failed", num(s.requests_failed)}},
      "outcome");
  add(out, kGauge, "coppice_requests", "Requests in the engine; following: waiting for another one's prefill.",
      {{"running", num(s.running_requests)},
       {"waiting", num(s.waiting_requests)},
       {"following", num(s.following_requests)}},
      "state");
  add(out, kGauge, "coppice_sequences", "Running sequences.", {{"", num(s.running_sequences)}});
  add(out, kCounter, "coppice_steps_total", "Steps of the engine.", {{"", num(s.steps)}});
  add(out, kCounter, "coppice_step_seconds_total", "Time in steps, by part; bookkeeping is the rest.",
      {{"forward", s.forward_seconds},
       {"sampling", s.sampling_seconds},
       {"bookkeeping", s.step_seconds - s.forward_seconds - s.sampling_seconds}},
      "part");
  return out;
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
      first_token_(prometheus::BuildHistogram()
                       .Name("coppice_time_to_first_token_seconds")
                       .Help("From a request's last byte to its first token.")
                       .Register(registry_)
                       .Add({}, kSeconds)),
      per_token_(prometheus::BuildHistogram()
                     .Name("coppice_time_per_output_token_seconds")
                     .Help("A request's time from its first token to its last, per further token.")
                     .Register(registry_)
                     .Add({}, kTokenSeconds)),
      request_(prometheus::BuildHistogram()
                   .Name("coppice_request_seconds")
                   .Help("From a request's last byte to its last token.")
                   .Register(registry_)
                   .Add({}, kSeconds)) {}

void Metrics::count_request(const std::string& endpoint, int status) {
  requests_.Add({{"path", endpoint}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::observe_request(double seconds, double decode_seconds, int tokens) {
  request_.Observe(seconds);
  if (tokens > 1) per_token_.Observe(decode_seconds / (tokens - 1));
}

std::string Metrics::scrape(const engine::Snapshot* snapshot, const HttpFigures& http) const {
  Families families = registry_.Collect();
  add(families, MetricType::Gauge, "coppice_ready", "1 when the model is loaded.", {{"", snapshot ? 1.0 : 0.0}});
  add(families, MetricType::Gauge, "coppice_connections", "Open connections.", {{"", num(http.connections)}});
  add(families, MetricType::Gauge, "coppice_http_body_bytes", "Bytes of request bodies that arrive or wait to be read.",
      {{"", num(http.body_bytes)}});
  if (snapshot != nullptr) {
    Families more = engine_families(*snapshot);
    families.insert(families.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace coppice::server
