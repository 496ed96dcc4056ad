#include "engine/prompt_starts.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "engine/make_cache_report.h"
#include "engine/spare.h"

namespace coppice::engine {

void PromptStarts::begin(Sequence& sequence, bool queue_was_empty, Clock::time_point now) {
  OpenRequest& open = *sequence.request;
  open.starts_by_loading = !open.admitted_before && sequence.loads();
  if (open.admitted_before) {
    ++p_.figures.resumptions;
    return;
  }
  open.admitted_before = true;
  open.admitted_at = now;
  open.usage.cached_tokens = sequence.computed;
  ++p_.figures.admissions;
  p_.figures.prompt_tokens += open.usage.prompt_tokens;
  p_.figures.queue_seconds.add(std::chrono::duration<double>(now - open.request.submitted).count());
  p_.rates.left_queue(now, queue_was_empty);
  count_found(sequence.computed);
  const bool asks_for_object = std::ranges::any_of(open.request.pins, &PinWish::object);  // it uses nothing
  if (!asks_for_object) spare([&] { p_.prefixes.count_hits(open.request, sequence.computed, now); });
  spare([&] { p_.tiers.outflow().keep(sequence.seq, sequence.computed); });
  take_pins(sequence, now);
  report(sequence, now);
  if (!open.starts_by_loading) p_.requests.add_progress(open, sequence.computed);
  if (!open.request.scoring) return;
  std::vector<sampling::PromptToken> unscored;
  for (const kv::Token token : open.request.prompt.view().first(static_cast<std::size_t>(open.next_scored)).tokens())
    unscored.push_back(open.request.scoring->scorer->name(token));
  p_.requests.add_prompt(open, std::move(unscored));
}

void PromptStarts::loaded(Sequence& sequence, std::int32_t tokens, Clock::time_point now) {
  OpenRequest& open = *sequence.request;
  p_.figures.loaded_tokens += tokens;
  if (!std::exchange(open.starts_by_loading, false)) return;  // it was preempted, and has counted what was found
  open.usage.cached_tokens += tokens;
  open.usage.loaded_tokens += tokens;
  count_found(tokens);
  take_pins(sequence, now);
  const bool told = open.request.cache_report && open.report == nullptr;
  if (tokens > 0 && !told) report(sequence, now, tokens);
  p_.requests.add_progress(open, sequence.computed);
}

void PromptStarts::count_found(std::int32_t tokens) {
  p_.figures.cached_tokens += tokens;
  if (const double speed = p_.rates.prefill_tokens_per_second(); speed > 0) p_.figures.saved_seconds += tokens / speed;
}

// A request that asked for its report fails without it.
void PromptStarts::report(Sequence& sequence, Clock::time_point now, std::int32_t loaded) {
  OpenRequest& open = *sequence.request;
  if (!open.request.cache_report && !p_.viewer.watched()) return;
  const auto make = [&] {
    CacheReport report = make_cache_report(p_.cache, sequence, sequence.computed, p_.scheduler.running(),
                                           p_.rates.prefill_tokens_per_second());
    report.loaded_tokens = loaded;
    if (loaded > 0) report.loaded_seconds = std::chrono::duration<double>(now - open.admitted_at).count();
    open.watched_report = std::make_shared<const CacheReport>(std::move(report));
  };
  if (!open.request.cache_report) return spare(make);
  make();
  open.report = open.watched_report;
}

void PromptStarts::take_pins(Sequence& sequence, Clock::time_point now) {
  OpenRequest& open = *sequence.request;
  const std::int32_t bs = p_.cache.config().block_size;
  std::vector<PinOutcome>& taken = open.usage.pins;
  while (taken.size() < open.request.pins.size()) {
    const PinWish& wish = open.request.pins[taken.size()];
    if (wish.tokens / bs * bs > sequence.computed) return;
    taken.push_back(p_.prefixes.pin(open.request, wish, now));
    if (taken.back().prefix) spare([&] { p_.tiers.outflow().keep(sequence.seq, wish.tokens); });
  }
}

}  // namespace coppice::engine
