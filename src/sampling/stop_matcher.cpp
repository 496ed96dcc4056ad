#include "sampling/stop_matcher.h"

#include <algorithm>
#include <cassert>

namespace coppice::sampling {

StopMatcher::StopMatcher(std::span<const std::string> stops) {
  for (const std::string& stop : stops) {
    assert(!stop.empty());
    Automaton automaton{stop, std::vector<std::size_t>(stop.size(), 0)};
    for (std::size_t i = 1, border = 0; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = automaton.fallback[border - 1];
      if (stop[i] == stop[border]) ++border;
      automaton.fallback[i] = border;
    }
    automata_.push_back(std::move(automaton));
  }
}

void StopMatcher::Automaton::step(char c) {
  while (matched > 0 && stop[matched] != c) matched = fallback[matched - 1];
  if (stop[matched] == c) ++matched;
}

std::string StopMatcher::push(std::string_view piece) {
  assert(!stopped_);
  if (automata_.empty()) return std::string(piece);
  std::size_t claimed = 0;  // longest suffix of the text that begins a stop string
  for (std::size_t i = 0; i < piece.size(); ++i) {
    claimed = 0;
    std::size_t complete = 0;
    for (Automaton& automaton : automata_) {
      automaton.step(piece[i]);
      claimed = std::max(claimed, automaton.matched);
      if (automaton.matched == automaton.stop.size()) complete = std::max(complete, automaton.matched);
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
  for (Automaton& automaton : automata_) automaton.matched = 0;
  return text;
}

}  // namespace coppice::sampling
