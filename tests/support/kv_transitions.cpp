#include "support/kv_transitions.h"

namespace coppice::test {

const char* to_text(Transition t) {
  static constexpr std::array<const char*, static_cast<std::size_t>(Transition::kCount)> kNames = {
      "fork in mid-block",
      "fork by n",
      "last-owner write",
      "evict in a split path",
      "leader lost",
      "preempt and resume",
      "preempt with a copy",
      "window moved before a fork",
      "partial leaf replaced",
      "merged at publish",
      "hole hit by a match",
      "out of blocks",
      "admission refused",
      "failed step",
      "hole filled in alike groups",
      "pin taken",
      "pins overlap",
      "pin refused",
      "pin ended",
      "pinned prefix found",
      "state kept",
      "state kept at the end",
      "state hit",
      "state hit in mid-block",
      "state forked",
      "state taken",
      "state restored",
      "state evicted",
      "state went with a block",
      "state missing",
      "state without room",
      "state's step failed",
      "cache cleared",
      "extended ahead",
      "merged ahead",
      "ended in flight",
      "fork unpublished",
      "tail taken ahead",
      "rewound",
      "rewound ahead",
      "state rewound",
      "accepted in part",
      "cut before a medium",
      "match ends in media",
      "medium halved",
      "fork in a medium",
      "preempt in a medium",
      "tail shared",
      "failed ahead"};
  return kNames[static_cast<std::size_t>(t)];
}

}  // namespace coppice::test
