#include "engine/make_cache_report.h"

#include <algorithm>

#include "kv/text.h"

namespace coppice::engine {

namespace {

constexpr std::size_t kShownTokens = 16;  // on each side: enough to recognise a date or a name

/// How many of these tokens some other running sequence begins with.
std::int32_t running_overlap(const kv::Cache& cache, const Sequence& sequence, kv::TextView tokens,
                             std::span<Sequence* const> running) {
  std::int32_t longest = 0;
  for (const Sequence* other : running) {
    if (other == &sequence || other->request->request.ns != sequence.request->request.ns) continue;
    const auto theirs = other->stage == SequenceStage::kPrefill ? other->tokens() : cache.tokens(other->seq);
    longest = std::max(longest, kv::common_prefix(tokens, theirs));
  }
  return longest;
}

}  // namespace

CacheReport make_cache_report(const kv::Cache& cache, const Sequence& sequence, std::int32_t matched,
                              std::span<Sequence* const> running, double prefill_speed) {
  const auto all = sequence.tokens();
  const auto usable = sequence.matchable();
  const auto at = static_cast<std::size_t>(matched);
  CacheReport report{.prompt_tokens = static_cast<std::int32_t>(all.size()), .matched_tokens = matched};
  report.before = kv::Text(usable.first(at).last(std::min(at, kShownTokens)));
  report.asked = kv::Text(all.subspan(at, std::min(all.size() - at, kShownTokens)));
  // First: a prompt of one token, or a scored one, would say that it matched all that it may.
  if (!cache.config().share) {
    report.ended = MatchEnded::kSharingOff;
    return report;
  }
  if (at == usable.size()) {
    const Request& request = sequence.request->request;
    if (at + 1 < all.size()) {
      report.ended = !request.match_cache ? MatchEnded::kNotAsked
                     : request.pooling    ? MatchEnded::kPooled
                     : request.scoring    ? MatchEnded::kScored
                                          : MatchEnded::kLastToken;  // and the medium before it, or that it is part of
    }
    return report;
  }
  kv::MatchEnd end = cache.explain(usable, sequence.request->request.ns);
  report.ended = end.why;
  const std::int32_t in_flight = running_overlap(cache, sequence, usable, running);
  if (in_flight > matched + end.evicted + end.stateless) {
    report.ended = MatchEnded::kInFlight;
    report.lost_tokens = in_flight - matched;
  } else if (end.why == MatchEnded::kEvicted) {
    report.lost_tokens = end.evicted;
  } else if (end.why == MatchEnded::kNoState) {
    report.lost_tokens = end.stateless;
  } else if (end.why == MatchEnded::kDiffers) {
    report.lost_tokens = static_cast<std::int32_t>(usable.size()) - matched;
    report.found = std::move(end.found);
  }
  if (prefill_speed > 0) report.lost_seconds = report.lost_tokens / prefill_speed;
  return report;
}

}  // namespace coppice::engine
