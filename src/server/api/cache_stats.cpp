#include "server/api/cache_stats.h"

#include "server/api/json.h"

namespace coppice::server {

std::string cache_stats_json(const engine::Snapshot& s, const ModelFacts& facts, const std::string& model) {
  const kv::CacheStats& c = s.cache;
  JsonObject json = {{"model", model},
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
                       {"reserved", c.reserved}}},
                     {"bytes", {{"budget", c.bytes_budget}, {"in_use", c.bytes_in_use}, {"peak", c.bytes_peak}}},
                     {"tokens",
                      {{"prompt", s.prompt_tokens},
                       {"cached", s.cached_tokens},
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
                     {"steps",
                      {{"count", s.steps},
                       {"seconds", s.step_seconds},
                       {"forward_seconds", s.forward_seconds},
                       {"sampling_seconds", s.sampling_seconds}}}};
  return dump(std::move(json));
}

}  // namespace coppice::server
