// What the page shows: StepLoop::answer() asks the Viewer (engine/viewer.cpp) for a View, whose tree is
// Cache::picture()'s (kv/tree_picture.cpp). CacheFeed (cache_feed.cpp) sends it as JSON, made here, to all who look
// (GET /v1/cache/events). web/main.js hands it to tree.js, figures.js and requests.js. A new field goes through all of
// these; docs/api.md names it.
#include "server/api/cache/cache_view_json.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "server/api/base/cache_report_json.h"
#include "server/api/base/json.h"

namespace coppice::server {

namespace {

double rounded(double seconds) {
  return std::round(seconds * 1000) / 1000;
}

const char* name_of(engine::RequestStage stage) {
  switch (stage) {
    case engine::RequestStage::kQueued:
      return "queued";
    case engine::RequestStage::kFollowing:
      return "following";
    case engine::RequestStage::kPrefill:
      return "prefill";
    case engine::RequestStage::kDecode:
      return "decode";
    case engine::RequestStage::kEnded:
      break;
  }
  return "ended";
}

/// Of all nodes: a token may have many bytes, and what a sibling has in common is shown whole.
constexpr std::size_t kMostTextBytes = std::size_t{1} << 20;

JsonArray nodes_json(const engine::View& view, const Model& model, CacheReports reports) {
  std::size_t text_bytes = 0;
  JsonArray nodes;
  nodes.reserve(view.tree.nodes.size());
  for (const kv::PictureNode& node : view.tree.nodes) {
    JsonObject json = {{"id", node.serial},        {"parent", nullptr},
                       {"begin", node.begin},      {"tokens", node.tokens},
                       {"stored", node.stored},    {"holders", node.holders},
                       {"hits", node.hits},        {"idle_seconds", rounded(std::max(0.0, view.now - node.last_used))},
                       {"left_out", node.left_out}};
    if (node.parent >= 0) json["parent"] = view.tree.nodes[static_cast<std::size_t>(node.parent)].serial;
    if (reports == CacheReports::kText && text_bytes < kMostTextBytes) {
      const kv::TextView head = node.head;
      std::string text = shown_text(model, head), own_text;
      if (node.common > 0) own_text = shown_text(model, head.subspan(static_cast<std::size_t>(node.common)));
      text_bytes += text.size() + own_text.size();
      json["text"] = text;
      if (node.common > 0) json["own_text"] = own_text;
    }
    nodes.push_back(std::move(json));
  }
  return nodes;
}

/// What outside of the pool there is. How many blocks lie in Redis nobody knows.
JsonArray tiers_json(const engine::Snapshot& s) {
  JsonArray tiers;
  for (const tier::Counters& c : s.places)
    tiers.push_back(
        JsonObject{{"tier", tier::to_string(c.kind)}, {"on", c.on}, {"pieces", c.pieces}, {"bytes", c.bytes}});
  return tiers;
}

JsonArray requests_json(const engine::View& view, const Model& model, CacheReports reports) {
  JsonArray requests;
  for (const engine::RequestView& r : view.requests) {
    JsonArray nodes;
    for (const std::uint64_t serial : r.stands_on) nodes.push_back(serial);
    JsonObject json = {{"id", r.id},
                       {"stage", name_of(r.stage)},
                       {"samples", r.samples},
                       {"prompt_tokens", r.prompt_tokens},
                       {"cached_tokens", r.cached_tokens},
                       {"loaded_tokens", r.loaded_tokens},
                       {"computed_tokens", r.computed_tokens},
                       {"completion_tokens", r.completion_tokens},
                       {"seconds", rounded(r.seconds)},
                       {"queue_seconds", rounded(r.queue_seconds)},
                       {"first_token_seconds", rounded(r.first_token_seconds)},
                       {"total_seconds", rounded(r.total_seconds)},
                       {"answered", r.answered},
                       {"nodes", std::move(nodes)}};
    if (r.report && reports != CacheReports::kOff) {
      JsonObject report = cache_report_json(*r.report, model, reports);
      if (reports != CacheReports::kText) report.erase("text");  // who watches need not be who asked
      json["report"] = std::move(report);
    }
    requests.push_back(std::move(json));
  }
  return requests;
}

}  // namespace

std::string tree_json(const engine::View& view, const Model& model, CacheReports reports) {
  return dump(JsonObject{
      {"object", "cache.tree"}, {"nodes", nodes_json(view, model, reports)}, {"left_out", view.tree.left_out}});
}

std::string frame_json(const engine::View& view, const engine::Snapshot& s, const Model& model,
                       const ApiConfig& config) {
  const kv::CacheStats& c = s.cache;
  const std::size_t block_bytes = c.total > 0 ? c.bytes_budget / static_cast<std::size_t>(c.total) : 0;
  return dump(
      JsonObject{{"model", config.names.id},
                 {"share", model.facts().share},
                 {"vision", model.facts().most_pictures > 0},
                 {"context_length", model.facts().context_length},
                 {"kv_format", model.facts().kv_format},
                 {"block_size", c.block_size},
                 {"block_bytes", block_bytes},
                 {"blocks",
                  {{"total", c.total},
                   {"free", c.free},
                   {"in_use", c.in_use},
                   {"cached", c.cached},
                   {"shared", c.shared},
                   {"spared", c.spared}}},
                 {"tiers", tiers_json(s)},
                 {"saved",
                  {{"tokens", s.cached_tokens},
                   {"seconds", rounded(s.saved_seconds)},
                   {"bytes", static_cast<std::size_t>(c.reused) * block_bytes}}},
                 {"totals",
                  {{"prompt_tokens", s.prompt_tokens},
                   {"computed_tokens", s.computed_tokens},
                   {"generated_tokens", s.generated_tokens},
                   {"finished", s.requests_finished},
                   {"evictions", c.evictions},
                   {"forks", c.cow_forks},
                   {"preemptions", s.preemptions},
                   {"nodes", c.tree_nodes}}},
                 {"running", s.running_requests},
                 {"waiting", s.waiting_requests},
                 {"prefill_tokens_per_second", std::round(s.prefill_tokens_per_second)},
                 {"tree", {{"nodes", nodes_json(view, model, config.cache_reports)}, {"left_out", view.tree.left_out}}},
                 {"requests", requests_json(view, model, config.cache_reports)},
                 {"requests_left_out", view.left_out}});
}

}  // namespace coppice::server
