#include "sampling/stop_matcher.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "check/assert.h"
#include "sampling/params.h"

namespace coppice::sampling {

StopStrings::StopStrings(std::span<const std::string> stops) {
  for (const std::string& stop : stops) {
    static_assert(kMaxStopBytes <= std::numeric_limits<std::uint16_t>::max());
    COPPICE_ASSERT(!stop.empty() && stop.size() <= kMaxStopBytes);
    Automaton automaton{stop, std::vector<std::uint16_t>(stop.size(), 0)};
    for (std::size_t i = 1, border = 0; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = automaton.fallback[border - 1];
      if (stop[i] == stop[border]) ++border;
      automaton.fallback[i] = static_cast<std::uint16_t>(border);
    }
    automata_.push_back(std::move(automaton));
  }
}

std::size_t StopStrings::Automaton::step(std::size_t matched, char c) const {
  while (matched > 0 && stop[matched] != c) matched = fallback[matched - 1];
  return stop[matched] == c ? matched + 1 : matched;
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> stops)
    : stops_(std::move(stops)), matched_(stops_->automata_.size(), 0) {}

std::string StopMatcher::push(std::string_view piece) {
  COPPICE_ASSERT(!stopped_);
  if (matched_.empty()) return std::string(piece);
  std::size_t claimed = 0;  // longest suffix of the text that begins a stop string
  for (std::size_t i = 0; i < piece.size(); ++i) {
    claimed = 0;
    std::size_t complete = 0;
    for (std::size_t k = 0; k < matched_.size(); ++k) {
      const StopStrings::Automaton& automaton = stops_->automata_[k];
      matched_[k] = automaton.step(matched_[k], piece[i]);
      claimed = std::max(claimed, matched_[k]);
      if (matched_[k] != automaton.stop.size() || matched_[k] <= complete) continue;
      complete = matched_[k];
      met_ = automaton.stop;
    }
    if (complete > 0) {
      stopped_ = true;
      std::string text = std::move(held_);
      text.append(piece, 0, i + 1);
      text.resize(text.size() - complete);
      held_.clear();
      return text;
    }
  }
  if (piece.empty()) return {};
  held_ += piece;
  std::string text = held_.substr(0, held_.size() - claimed);
  held_.erase(0, text.size());
  return text;
}

std::string StopMatcher::flush() {
  std::string text = std::move(held_);
  held_.clear();
  std::ranges::fill(matched_, 0);
  return text;
}

}  // namespace coppice::sampling
