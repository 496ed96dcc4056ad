// StopMatcher: finds the first stop string in a text that comes in pieces, and never lets a part of it out.
//
// Not thread safe.
//
// Invariants
//   1. The stop string that is complete first wins; of those complete at the same byte, the longest. The text
//      let out is all that comes before its first byte, however the text was cut into pieces.
//   2. Held back is exactly the longest suffix of the text that begins some stop string.
//   3. If stop strings and pieces are valid UTF-8 ending at characters' ends, so is each text let out.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::sampling {

class StopMatcher {
 public:
  /// REQUIRES: no stop string is empty.
  explicit StopMatcher(std::span<const std::string> stops);

  /// Takes a piece, returns the text that no stop string can still claim. REQUIRES: !stopped().
  std::string push(std::string_view piece);

  /// The end of the text: what was held back, if no stop string was met.
  std::string flush();

  bool stopped() const { return stopped_; }
  std::size_t pending() const { return held_.size(); }  ///< bytes held back

 private:
  /// Knuth-Morris-Pratt: `matched` is the longest suffix of the text so far that begins `stop`.
  struct Automaton {
    std::string stop;
    std::vector<std::size_t> fallback;  ///< [stop.size()]: longest proper border of stop[0, i]
    std::size_t matched = 0;
    void step(char c);
  };

  std::vector<Automaton> automata_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace coppice::sampling
