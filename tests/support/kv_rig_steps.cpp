// What KvRig does of a device: the steps that were submitted and not collected, in their order.
#include <algorithm>

#include "support/kv_rig.h"

namespace coppice::test {

using kv::BlockId;
using kv::SeqId;

// Whether the contents of some table wait for a copy.
bool KvRig::copies_pending() const {
  return !copies_.empty() ||
         std::ranges::any_of(flights_, [](const Flight& f) { return !f.ran && !f.step.copies.empty(); });
}

bool KvRig::written_in_flight(BlockId block) const {
  return std::ranges::any_of(flights_, [&](const Flight& flight) {
    return !flight.ran && std::ranges::any_of(flight.step.writes,
                                              [&](const RowWrite& w) { return w.slot / config_.block_size == block; });
  });
}

void KvRig::submit(bool runs_at_once) {
  if (!failure_.empty()) return;
  Flight flight{.step = {.copies = std::exchange(copies_, {})}};
  StoreStep& step = flight.step;
  for (auto& [seq, story] : live_) {
    if (story.writes.empty()) continue;
    flight.parts.emplace_back(seq, static_cast<std::int32_t>(story.writes.size()) / n_groups());
    step.writes.insert(step.writes.end(), story.writes.begin(), story.writes.end());
    step.states.insert(step.states.end(), story.state.begin(), story.state.end());
    story.writes.clear();
    story.state.clear();
  }
  flights_.push_back(std::move(flight));
  if (runs_at_once) {
    for (Flight& each : flights_) run(each);
  }
}

void KvRig::run(Flight& flight) {
  if (std::exchange(flight.ran, true)) return;
  if (const std::string why = store_.run(flight.step); !why.empty()) fail(why);
}

void KvRig::collect(const Accept& accept) {
  if (!failure_.empty()) return;
  run(flights_.front());
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  for (const auto& [seq, n] : flight.parts) {
    if (!live_.contains(seq)) continue;
    const Story& story = live_.at(seq);
    const std::int32_t accepted = accept ? accept(story, n) : n;
    publish(seq, accepted);
    if (accepted == n || !failure_.empty()) continue;
    count(Transition::kAcceptedInPart);
    rewind(seq, story.computed);
  }
}

void KvRig::run_step(const Accept& accept) {
  submit(/*runs_at_once=*/true);
  while (failure_.empty() && !flights_.empty()) collect(accept);
}

void KvRig::fail_step(bool copies_done) {
  submit(/*runs_at_once=*/false);
  if (!failure_.empty()) return;
  std::map<SeqId, int> writers;
  for (Flight& flight : std::exchange(flights_, {})) {
    if (!copies_done) flight.step.copies.clear();
    const std::string why = flight.ran ? "" : store_.run_failed(flight.step);
    if (!why.empty()) return fail(why);
    for (const auto& [seq, n] : flight.parts) {
      if (live_.contains(seq)) ++writers[seq];
    }
  }
  for (const auto& [seq, steps] : writers) live_.at(seq).broken = true;
  for (const auto& [seq, steps] : writers) {
    count(Transition::kFailedStep);
    if (steps > 1) count(Transition::kFailedAhead);
    if (has_states()) count(Transition::kStateFailed);
    finish(seq);
  }
}

}  // namespace coppice::test
