// StopMatcher: finds the first stop string in a text that comes in pieces, and never lets a part of it out.
//
// Not thread safe. StopStrings is never changed: any number of matchers may share one.
//
// Invariants
//   1. The stop string that is complete first wins; of those complete at the same byte, the longest. The text let out
//      is all that comes before its first byte, whatever the pieces were.
//   2. Held back is exactly the longest suffix of the text that begins some stop string.
//   3. If stop strings and pieces are valid UTF-8 ending at characters' ends, so is each text let out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::sampling {

/// Stop strings with their tables for Knuth-Morris-Pratt, three bytes for each byte. All samples of a request share
/// them.
class StopStrings {
 public:
  /// REQUIRES: no stop string is empty, or longer than kMaxStopBytes.
  explicit StopStrings(std::span<const std::string> stops);

 private:
  friend class StopMatcher;
  struct Automaton {
    std::string stop;
    std::vector<std::uint16_t> fallback;  ///< [stop.size()]: longest proper border of stop[0, i]
    /// The longest suffix of the text that begins `stop`, after c, if it was `matched` before.
    std::size_t step(std::size_t matched, char c) const;
  };
  std::vector<Automaton> automata_;
};

class StopMatcher {
 public:
  explicit StopMatcher(std::shared_ptr<const StopStrings> stops);

  /// Takes a piece, returns the text that no stop string can still claim. REQUIRES: !stopped().
  std::string push(std::string_view piece);

  /// The end of the text: what was held back, if no stop string was met.
  std::string flush();

  bool stopped() const { return stopped_; }
  const std::string& met() const { return met_; }       ///< the stop string; empty unless stopped()
  std::size_t pending() const { return held_.size(); }  ///< bytes held back

 private:
  std::shared_ptr<const StopStrings> stops_;
  std::vector<std::size_t> matched_;  ///< by stop string: the longest suffix of the text so far that begins it
  std::string held_;
  std::string met_;
  bool stopped_ = false;
};

}  // namespace coppice::sampling
