// Deliberate faults, compiled in only for the test that proves that our tests would see them (coppice_kv_faulty).
#pragma once

#include <cstdint>

#include "check/fault.h"

namespace coppice::kv {

enum class Fault : std::uint8_t {
  kNone,
  kLeakReference,         ///< a finished sequence keeps its first block
  kDropReference,         ///< a match takes one reference too few
  kSkipFork,              ///< a shared tail is written in place
  kCopyOneShort,          ///< a fork copies one slot too few
  kCopyOtherGroup,        ///< a fork's copy names the full group, whatever it copies
  kMatchOneLong,          ///< a match claims one token more than it compared
  kIgnoreHole,            ///< a sliding group's hole doesn't shorten a match
  kHoleInOneGroup,        ///< eviction leaves a window's blocks in its other groups
  kIgnoreSalt,            ///< every namespace is the same
  kStaleTableAfterMerge,  ///< a merged block leaves the table pointing to the freed one
  kEvictInUse,            ///< eviction frees a block that a sequence holds
  kReserveNothing,        ///< admission promises blocks without counting them
  kPublishUnfilled,       ///< a block enters the tree as full with its last slot unwritten
  kKeepForkedTail,        ///< a tail stays in the tree whose copy may never run
  kPinOneShort,           ///< a pin doesn't hold its last block
  kNoStateNeeded,         ///< a match goes on to where no state stands
  kStateBeyondItsTokens,  ///< a state's own tokens are not compared
  kFrozenStateWritten,    ///< a sequence goes on in a state that others hold
  kStaleState,            ///< a sequence keeps the state from before its step
  kStateOffByOne,         ///< a state enters the tree one token before its place
  kStateOutlivesBlock,    ///< a state stays in the tree when the block before it goes
  kLeakState,             ///< a finished sequence keeps its state
  kRewindOneLong,         ///< a sequence that is rewound keeps a block too many
  kRewindBreaksPromise,   ///< ... doesn't get its reservation back
  kSymbolsOnly,           ///< media of equal symbols are the same, whatever their digests
  kDigestOfSymbols,       ///< a block's digest leaves out those of its media
  kCutInMedium,           ///< a match ends inside a medium that can't be cut
  kDraftInPlace,          ///< a draft step writes its state over the one it may have to go back to
};

/// False in all builds but that one.
inline bool fault(Fault f) {
  return check::is_active(f);
}

}  // namespace coppice::kv
