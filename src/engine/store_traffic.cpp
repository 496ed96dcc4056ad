#include "engine/store_traffic.h"

#include <chrono>
#include <thread>
#include <utility>

#include "engine/spare.h"

namespace coppice::engine {

bool StoreTraffic::attach(TierConfig&& tiers) {
  const bool usable = runner_.info().moves_blocks && cache_.config().share && !tiers_.on();
  if (!usable) return false;
  tiers_.attach(std::move(tiers));
  if (forgets_) tiers_.forget();
  tiers_.revoke(revoked_);
  return true;
}

bool StoreTraffic::forget(std::optional<tier::StoreKind> place) {
  forgets_ |= !tiers_.on() && !place;
  return tiers_.forget(place);
}

void StoreTraffic::revoke(std::set<std::string> owners) {
  revoked_ = std::move(owners);
  tiers_.revoke(revoked_);
}

std::vector<Sequence*> StoreTraffic::loading() const {
  std::vector<Sequence*> loading;
  if (!tiers_.on()) return loading;
  for (Sequence* sequence : scheduler_.running())
    if (sequence->loads()) loading.push_back(sequence);
  return loading;
}

void StoreTraffic::begin_to_settle(Clock::time_point until) {
  until_ = until;
  spare([&] { tiers_.outflow().keep_all(); });
}

void StoreTraffic::settle() {
  if (!tiers_.on() || config_.now() >= until_) return;
  constexpr auto kPause = std::chrono::milliseconds(2);  // until a buffer is free again
  spare([&] {
    tiers_.outflow().keep_all();
    while (!tiers_.outflow().empty() && config_.now() < until_) {
      PlannedStep& step = scheduler_.planned();
      step.clear();
      runner_.block_ops();
      runner_.build(cache_, step);
      step.moves = tiers_.add_moves(runner_.ops_to_extend(), runner_.outside(), /*rests=*/true);
      if (step.moves == 0) {
        std::this_thread::sleep_for(kPause);
        continue;
      }
      runner_.submit(step);
      runner_.wait(step);
      tiers_.moved(step.moves, 0, config_.now());
    }
    while (tiers_.pending_writes() > 0 && config_.now() < until_) std::this_thread::sleep_for(kPause);
  });
}

}  // namespace coppice::engine
