// A new metric: its figure in engine/snapshot.h (counted in step_loop.cpp, scheduler.cpp, request_table.cpp or
// prompt_starts.cpp), in kv::CacheStats, or in metrics.h; written here, for /v1/cache/stats in cache_stats_json(); a
// row in docs/operations.md or docs/api.md: tests compare both.
#include "server/api/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <sstream>
#include <vector>

#include "server/api/base/json.h"

namespace coppice::server {

namespace {

using engine::Snapshot;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;

struct Sample {
  const char* label_value;
  double value;
};

/// One family; with a label, its values tell the samples apart.
void add(Families& out, MetricType type, const char* name, const char* help, const std::vector<Sample>& samples,
         const char* label = nullptr) {
  MetricFamily family{name, help, type, {}};
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

void add_counter(Families& out, const char* name, const char* help, auto value) {
  add(out, MetricType::Counter, name, help, {{"", num(value)}});
}

void add_gauge(Families& out, const char* name, const char* help, auto value) {
  add(out, MetricType::Gauge, name, help, {{"", num(value)}});
}

void add_histogram(Families& out, const char* name, const char* help, const engine::Histogram& histogram) {
  prometheus::ClientMetric metric;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < histogram.counts().size(); ++i) {
    count += static_cast<std::uint64_t>(histogram.counts()[i]);
    const bool last = i == histogram.bounds().size();
    metric.histogram.bucket.push_back(
        {.cumulative_count = count,
         .upper_bound = last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i]});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = histogram.sum();
  MetricFamily family{name, help, MetricType::Histogram, {}};
  family.metric.push_back(std::move(metric));
  out.push_back(std::move(family));
}

void add_cache(Families& out, const engine::Snapshot& s) {
  const kv::CacheStats& c = s.cache;
  add(out, MetricType::Gauge, "coppice_kv_blocks", "Blocks of the pool by state; they sum to the pool's size.",
      {{"free", num(c.free)}, {"cached", num(c.cached)}, {"in_use", num(c.in_use)}}, "state");
  add_gauge(out, "coppice_kv_cache_usage_perc", "Blocks held by sequences; 1 is all of them.",
            c.total > 0 ? num(c.in_use) / num(c.total) : 0);
  add_gauge(out, "coppice_kv_blocks_shared", "Blocks held by two sequences or pins, or more.", c.shared);
  add_gauge(out, "coppice_kv_blocks_pinned", "Blocks in use that pinned prefixes hold.", c.pinned);
  add_gauge(out, "coppice_pinned_prefixes", "Pinned prefixes.", c.pins);
  add_counter(out, "coppice_pinned_prefixes_given_up_total",
              "Pinned prefixes that ended early, since a request had no room beside them.", s.pins_given_up);
  add_gauge(out, "coppice_kv_states_in_use", "States of recurrent layers in use.", c.states_in_use);
  add_gauge(out, "coppice_kv_states_cached", "States of recurrent layers that are only cached.", c.states_cached);
  add_gauge(out, "coppice_kv_state_blocks", "Blocks that one state of recurrent layers takes; 0: the model has none.",
            c.state_pages);
  add_gauge(out, "coppice_kv_block_max_refs", "Most sequences on one block.", c.max_refs);
  add_gauge(out, "coppice_kv_bytes_budget", "Bytes of the pool.", c.bytes_budget);
  add_gauge(out, "coppice_kv_bytes_in_use", "Bytes of blocks held by sequences.", c.bytes_in_use);
  add_gauge(out, "coppice_kv_bytes_peak", "Most bytes in use since start.", c.bytes_peak);
  add_counter(out, "coppice_kv_forks_total", "Blocks copied before a write.", c.cow_forks);
  add_counter(out, "coppice_kv_evictions_total", "Cached blocks given up for new ones.", c.evictions);
}

void add_tokens(Families& out, const Snapshot& s) {
  add_counter(out, "coppice_prompt_tokens_total", "Prompt tokens of admitted requests.", s.prompt_tokens);
  add_counter(out, "coppice_prefix_cache_queries_total", "Prompt tokens looked up in the cache, at first admission.",
              s.prompt_tokens);
  add_counter(out, "coppice_prefix_cache_hits_total", "Of these, tokens found.", s.cached_tokens);
  add_counter(out, "coppice_computed_tokens_total", "Prompt tokens run through the model.", s.computed_tokens);
  add_counter(out, "coppice_generation_tokens_total", "Tokens generated.", s.generated_tokens);
}

void add_requests(Families& out, const Snapshot& s) {
  add_gauge(out, "coppice_num_requests_running", "Running requests.", s.running_requests);
  add_gauge(out, "coppice_num_requests_waiting", "Requests in the queue, preempted ones included.", s.waiting_requests);
  add_gauge(out, "coppice_num_requests_following", "Waiting requests that wait for another one's prefill.",
            s.following_requests);
  add_gauge(out, "coppice_num_sequences_running", "Running sequences: a request's samples count each.",
            s.running_sequences);
  add_counter(out, "coppice_requests_submitted_total", "Requests that were handed to the engine.",
              s.requests_submitted);
  add(out, MetricType::Counter, "coppice_requests_total", "Requests that left the engine, by outcome.",
      {{"finished", num(s.requests_finished)},
       {"cancelled", num(s.requests_cancelled)},
       {"timed_out", num(s.requests_timed_out)},
       {"refused", num(s.requests_refused)},
       {"failed", num(s.requests_failed)}},
      "outcome");
  add(out, MetricType::Counter, "coppice_request_success_total", "Samples that came to their end, by finish reason.",
      {{"stop", num(s.samples_stopped)}, {"length", num(s.samples_cut)}}, "finished_reason");
  add_counter(out, "coppice_admissions_total", "Requests that began to run.", s.admissions);
  add_counter(out, "coppice_admissions_ahead_total", "Admissions and resumptions ahead of an earlier request.",
              s.passes);
  add_counter(out, "coppice_num_preemptions_total", "Requests preempted for want of blocks.", s.preemptions);
  add_counter(out, "coppice_resumptions_total", "Preempted sequences that run again.", s.resumptions);
}

/// One family with a sample for each tier.
void add_by_tier(Families& out, MetricType type, const char* name, const char* help, const Snapshot& s,
                 const auto& figure) {
  std::vector<Sample> samples;
  for (const tier::Counters& place : s.places) samples.push_back({to_string(place.kind), num(figure(place))});
  add(out, type, name, help, samples, "tier");
}

/// ... and for each thing that happened there.
void add_pieces(Families& out, const Snapshot& s) {
  MetricFamily family{
      "coppice_kv_store_pieces_total", "Blocks and states, by what happened to them.", MetricType::Counter, {}};
  for (const tier::Counters& place : s.places) {
    const Sample events[] = {{"read", num(place.loads)},      {"missed", num(place.load_misses)},
                             {"written", num(place.writes)},  {"dropped", num(place.dropped)},
                             {"evicted", num(place.evicted)}, {"damaged", num(place.damaged)}};
    for (const Sample& event : events) {
      prometheus::ClientMetric metric;
      metric.label = {{"tier", to_string(place.kind)}, {"event", event.label_value}};
      metric.counter.value = event.value;
      family.metric.push_back(std::move(metric));
    }
  }
  out.push_back(std::move(family));
}

void add_places(Families& out, const Snapshot& s) {
  using tier::Counters;
  const auto gauge = [&](const char* name, const char* help, auto figure) {
    add_by_tier(out, MetricType::Gauge, name, help, s, [&](const Counters& c) { return c.*figure; });
  };
  const auto counter = [&](const char* name, const char* help, auto figure) {
    add_by_tier(out, MetricType::Counter, name, help, s, [&](const Counters& c) { return c.*figure; });
  };
  gauge("coppice_kv_store_on", "1: it works.", &Counters::on);
  gauge("coppice_kv_store_no_room", "1: its limits leave no room for a block.", &Counters::no_room);
  gauge("coppice_kv_store_pieces", "Blocks and states that it holds.", &Counters::pieces);
  gauge("coppice_kv_store_bytes", "Bytes that it holds.", &Counters::bytes);
  gauge("coppice_kv_store_pending", "Writes that it has taken and not done.", &Counters::pending);
  counter("coppice_kv_store_read_bytes_total", "Bytes that were loaded.", &Counters::load_bytes);
  counter("coppice_kv_store_written_bytes_total", "Bytes that were stored.", &Counters::write_bytes);
  counter("coppice_kv_store_read_seconds_total", "Time of its threads, reading.", &Counters::load_seconds);
  counter("coppice_kv_store_write_seconds_total", "Time of its threads, writing.", &Counters::write_seconds);
  add_pieces(out, s);
  counter("coppice_kv_store_errors_total", "Errors of the system below it.", &Counters::io_errors);
  counter("coppice_kv_store_switch_offs_total", "How often it switched itself off.", &Counters::switch_offs);
}

/// Of all tiers together: who asks one asks the others for the rest.
void add_loads(Families& out, const Snapshot& s) {
  add_gauge(out, "coppice_num_requests_loading", "Running requests that wait for another tier.", s.loading_requests);
  add_counter(out, "coppice_kv_store_loaded_tokens_total", "Tokens that came from there in place of being computed.",
              s.loaded_tokens);
  add(out, MetricType::Counter, "coppice_kv_store_requests_total",
      "Sequences for which other tiers were asked, by what came of it.",
      {{"loaded", num(s.tiers.loads)},
       {"nothing", num(s.tiers.found_nothing)},
       {"slower", num(s.tiers.not_worth)},
       {"late", num(s.tiers.late)},
       {"cut", num(s.tiers.loads_cut)},
       {"left", num(s.tiers.left)}},
      "outcome");
  add_counter(out, "coppice_kv_store_unbuffered_total",
              "Blocks and states that were to go there, and for which there was no buffer.", s.tiers.unbuffered);
}

JsonObject places_json(const Snapshot& s) {
  JsonObject places;
  for (const tier::Counters& c : s.places) {
    places[to_string(c.kind)] = {
        {"on", c.on},       {"off_because", c.off_because}, {"no_room", c.no_room}, {"pieces", c.pieces},
        {"bytes", c.bytes}, {"max_bytes", c.max_bytes},     {"pending", c.pending}};
  }
  return places;
}

void add_images(Families& out, const vision::PictureFigures& f) {
  add_counter(out, "coppice_images_decoded_total", "Image files that were decoded.", f.decoded);
  add_counter(out, "coppice_image_encodes_total", "Stretches of images (an image, or a tile of one) that were encoded.",
              f.encoded);
  add_counter(out, "coppice_image_cache_hits_total",
              "Stretches of images whose rows were kept from an earlier request.", f.found);
  add_counter(out, "coppice_image_encode_seconds_total", "Time of the encoder.", f.encode_seconds);
  add_gauge(out, "coppice_image_cache_bytes", "Bytes of encoded images that are kept.", f.kept_bytes);
}

void add_device(Families& out, const executor::DeviceFigures& d) {
  add_gauge(out, "coppice_device_memory_bytes", "Memory of the GPU.", d.memory_bytes);
  add_gauge(out, "coppice_device_memory_used_bytes", "What of it is in use, by all programs.", d.memory_used);
  add(out, MetricType::Counter, "coppice_device_seconds_total",
      "The GPU's time, by phase; gap: without a kernel, between steps that were planned ahead.",
      {{"forward", d.forward_seconds}, {"sampling", d.sampling_seconds}, {"gap", d.gap_seconds}}, "phase");
}

void add_threads(Families& out, const executor::ThreadFigures& t) {
  add(out, MetricType::Gauge, "coppice_threads",
      "Threads that compute. all: there are; free: a step may have now, fewer while other programs hold processors; "
      "used: the last step had.",
      {{"all", num(t.most)}, {"free", num(t.free)}, {"used", num(t.used)}}, "of");
}

/// What gateways scrape of a vLLM server to share out load, by vLLM's names.
void add_vllm_names(Families& out, const Snapshot& s, const std::string& model) {
  const kv::CacheStats& c = s.cache;
  const auto gauge = [&](const char* name, const char* help, double value) {
    add(out, MetricType::Gauge, name, help, {{model.c_str(), value}}, "model_name");
  };
  gauge("vllm:num_requests_running", "As coppice_num_requests_running.", num(s.running_requests));
  gauge("vllm:num_requests_waiting", "As coppice_num_requests_waiting.", num(s.waiting_requests));
  gauge("vllm:kv_cache_usage_perc", "As coppice_kv_cache_usage_perc.", c.total > 0 ? num(c.in_use) / num(c.total) : 0);
  MetricFamily config{"vllm:cache_config_info", "Blocks of the pool, and their tokens.", MetricType::Gauge, {}};
  prometheus::ClientMetric& metric = config.metric.emplace_back();
  metric.label = {
      {"model_name", model}, {"block_size", std::to_string(c.block_size)}, {"num_gpu_blocks", std::to_string(c.total)}};
  metric.gauge.value = 1;
  out.push_back(std::move(config));
}

void add_engine(Families& out, const Snapshot& s) {
  add_cache(out, s);
  add_tokens(out, s);
  add_requests(out, s);
  add_histogram(out, "coppice_request_queue_time_seconds",
                "From a request's arrival to its first admission, or to its end in the queue.", s.queue_seconds);
  add_histogram(out, "coppice_inter_token_latency_seconds", "Between a sample's tokens, pauses by preemption included.",
                s.token_gap_seconds);
  add_histogram(out, "coppice_step_duration_seconds", "Steps of the engine that computed something.",
                s.step_duration_seconds);
  add_counter(out, "coppice_steps_total", "Steps of the engine.", s.steps);
  add(out, MetricType::Counter, "coppice_step_phase_seconds_total",
      "Time in steps, by phase; bookkeeping, planning included, is the rest.",
      {{"forward", s.forward_seconds},
       {"sampling", s.sampling_seconds},
       {"bookkeeping", s.step_seconds - s.forward_seconds - s.sampling_seconds}},
      "phase");
  add_places(out, s);
  add_loads(out, s);
  if (s.device.memory_bytes > 0) add_device(out, s.device);
  if (s.threads.most > 0) add_threads(out, s.threads);
  add_gauge(out, "coppice_asleep", "1: the weights' memory is let go until the next request.", s.asleep ? 1 : 0);
  add_counter(out, "coppice_wakes_total", "How often the weights were read again for a request.", s.wakes);
  add_counter(out, "coppice_waking_seconds_total", "Time that this took.", s.waking_seconds);
  add_gauge(out, "coppice_prefill_tokens_per_second", "Recent speed of prompts; 0: not known yet.",
            s.prefill_tokens_per_second);
}

}  // namespace

Rejection rejection_of(int status, bool draining) {
  switch (status) {
    case 401:
      return Rejection::kUnauthorized;
    case 408:
      return Rejection::kTooSlow;
    case 413:
    case 431:
      return Rejection::kTooLarge;
    case 503:
      return draining ? Rejection::kShutdown : Rejection::kUnavailable;
    case 504:
      return Rejection::kTimeout;
    default:
      return Rejection::kInvalid;
  }
}

std::string Metrics::scrape(const engine::Snapshot* snapshot, const HttpFigures& http,
                            const ResponseStoreFigures& responses, const vision::PictureFigures& images,
                            const std::string& model) const {
  COPPICE_ASSERT(io_thread_.mine());
  static constexpr std::array kReasons = {"too_long",     "too_many_samples", "queue_full", "shutdown",   "failed",
                                          "timeout",      "unsatisfiable",    "too_heavy",  "no_memory",  "invalid",
                                          "unauthorized", "too_large",        "too_slow",   "unavailable"};
  static_assert(kReasons.size() == std::tuple_size_v<decltype(rejections_)>);
  Families out;
  MetricFamily requests{
      "coppice_http_requests_total", "HTTP requests answered, by path and status.", MetricType::Counter, {}};
  for (const auto& [of, n] : requests_) {
    prometheus::ClientMetric& metric = requests.metric.emplace_back();
    metric.label = {{"path", of.first}, {"status", std::to_string(of.second)}};
    metric.counter.value = num(n);
  }
  out.push_back(std::move(requests));
  std::vector<Sample> rejections;
  for (std::size_t i = 0; i < kReasons.size(); ++i) rejections.push_back({kReasons[i], num(rejections_[i])});
  add(out, MetricType::Counter, "coppice_requests_rejected_total", "HTTP requests that were refused, by reason.",
      rejections, "reason");
  add_counter(out, "coppice_clients_gone_total", "Requests whose client left before the end, or read too slowly.",
              clients_gone_);
  add_gauge(out, "coppice_num_requests_preparing", "Requests whose bodies wait for the worker, or are on it.",
            preparing_);
  add_histogram(out, "coppice_request_preparation_time_seconds",
                "From a request's last byte until its body is tokenized, or refused.", preparation_);
  add_histogram(out, "coppice_time_to_first_token_seconds", "From a request's last byte to its first token.",
                first_token_);
  add_histogram(out, "coppice_request_time_per_output_token_seconds",
                "A request's time from its first token to its last, per further token.", per_token_);
  add_histogram(out, "coppice_e2e_request_latency_seconds", "From a request's last byte to its last token.", request_);
  add_gauge(out, "coppice_ready", "1 when the model is loaded.", snapshot != nullptr ? 1 : 0);
  add_gauge(out, "coppice_connections", "Open connections.", http.connections);
  add_gauge(out, "coppice_http_body_bytes", "Bytes of request bodies that arrive or wait to be read.", http.body_bytes);
  add_gauge(out, "coppice_stored_responses", "Responses that can be read again.", responses.responses);
  add_gauge(out, "coppice_stored_response_bytes", "Bytes of stored responses, and of the input of running ones.",
            responses.bytes);
  add_counter(out, "coppice_stored_response_evictions_total", "Stored responses given up for room.",
              responses.evictions);
  add_images(out, images);
  if (snapshot != nullptr) {
    add_engine(out, *snapshot);
    add_vllm_names(out, *snapshot, model);
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, out);
  return text.str();
}

std::string cache_stats_json(const engine::Snapshot& s, const ModelFacts& facts, const std::string& model) {
  const kv::CacheStats& c = s.cache;
  JsonObject json = {
      {"model", model},
      {"attention", facts.attention},
      {"kv_format", facts.kv_format},
      {"share", facts.share},
      {"context_length", facts.context_length},
      {"block_size", c.block_size},
      {"blocks",
       {{"total", c.total},
        {"free", c.free},
        {"in_use", c.in_use},
        {"cached", c.cached},
        {"shared", c.shared},
        {"max_refs", c.max_refs},
        {"reserved", c.reserved},
        {"pinned", c.pinned}}},
      {"states", {{"in_use", c.states_in_use}, {"cached", c.states_cached}, {"blocks_each", c.state_pages}}},
      {"pinned_prefixes", c.pins},
      {"stores", places_json(s)},
      {"bytes", {{"budget", c.bytes_budget}, {"in_use", c.bytes_in_use}, {"peak", c.bytes_peak}}},
      {"tokens",
       {{"prompt", s.prompt_tokens},
        {"cached", s.cached_tokens},
        {"loaded", s.loaded_tokens},
        {"computed", s.computed_tokens},
        {"generated", s.generated_tokens}}},
      {"cow_forks", c.cow_forks},
      {"evictions", c.evictions},
      {"admissions", s.admissions},
      {"preemptions", s.preemptions},
      {"resumptions", s.resumptions},
      {"tree_nodes", c.tree_nodes},
      {"integrity_checks", s.integrity_checks},
      {"integrity_findings", s.integrity_findings},
      {"requests",
       {{"running", s.running_requests},
        {"waiting", s.waiting_requests},
        {"following", s.following_requests},
        {"submitted", s.requests_submitted},
        {"finished", s.requests_finished},
        {"cancelled", s.requests_cancelled},
        {"timed_out", s.requests_timed_out},
        {"refused", s.requests_refused},
        {"failed", s.requests_failed}}},
      {"sequences", s.running_sequences},
      {"asleep", s.asleep},
      {"steps",
       {{"count", s.steps},
        {"seconds", s.step_seconds},
        {"forward_seconds", s.forward_seconds},
        {"sampling_seconds", s.sampling_seconds}}}};
  return dump(std::move(json));
}

}  // namespace coppice::server
