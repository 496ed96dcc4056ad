// Transition: what happens in a cache that is easy to get wrong.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace coppice::test {

/// Transitions that are easy to get wrong; the random test counts how often it met each.
enum class Transition : std::uint8_t {
  kForkMidBlock,      ///< a write into a shared, partly filled block
  kForkByN,           ///< fork(): samples share a partly filled tail
  kLastOwnerWrite,    ///< a tail that was shared is written in place: the others left or forked
  kEvictInSplitPath,  ///< eviction shortened a path that another path branches from
  kLeaderLost,        ///< ended within its prompt while others stood on its blocks
  kPreemptAndResume,  ///< finished and admitted again with the same tokens
  kPreemptWithCopy,   ///< ended while the step in hand still held its copies
  kWindowBeforeFork,  ///< a fork of a sequence whose window had moved
  kPartialReplaced,   ///< a partial leaf extended by a later sequence
  kMergedAtPublish,   ///< a block computed twice
  kHoleHit,           ///< a match shortened by a hole
  kOutOfBlocks,       ///< extend() refused
  kRefused,           ///< admit() refused
  kFailedStep,        ///< finish() after a broken step
  kHoleFilledAlike,   ///< who computes a block again fills the holes of all groups of a window
  kPinned,            ///< pin() took blocks
  kPinOverlaps,       ///< ... of which other pins held some
  kPinRefused,        ///< pin() had no room
  kPinEnded,          ///< unpin() of blocks that nobody else holds
  kPinHit,            ///< a prefix was found, after evictions, of which pins alone hold blocks
  kStateKept,         ///< the state at the end of a step stays in the tree
  kStateKeptAtEnd,    ///< likewise that of a sequence that ends
  kStateHit,          ///< a sequence started on a state
  kStateInBlock,      ///< ... that stands inside a block
  kStateForked,       ///< two samples go on from one state
  kStateTaken,        ///< without room for another, a sequence goes on in the state that stood in the tree
  kStateRestored,     ///< a preempted sequence started again on a state
  kStateEvicted,      ///< a kept state went before its blocks
  kStateWentAlong,    ///< ... with its blocks
  kStateMissing,      ///< a match was shortened for want of a state
  kStateNoRoom,       ///< a state was not kept, without room for the next one
  kStateFailed,       ///< a step broke that wrote a state
  kCleared,           ///< clear() threw blocks out while pins or sequences held others
  kExtendedAhead,     ///< extend() while the sequence's last step was not published
  kMergedAhead,       ///< a block was merged at publish() that a step in flight reads
  kEndedInFlight,     ///< a tail was kept while a step in flight wrote behind it
  kForkUnpublished,   ///< a tail was not kept: its copy was not known to have run
  kTailTakenAhead,    ///< a copy of a tail was planned while a step in flight wrote behind that
  kRewound,           ///< rewind() gave back blocks
  kRewoundAhead,      ///< ... while a step in flight was to write them
  kStateRewound,      ///< a draft's state was dropped, and the one before it is the sequence's again
  kAcceptedInPart,    ///< a step's rows were published in part, and the others taken back
  kCutBeforeMedium,   ///< more was known than can match: the end of a medium that can't be cut is missing
  kEndsInMedia,       ///< a match ended in a medium, or with one
  kMediumHalved,      ///< a match ended inside a medium whose rest was evicted
  kForkInMedium,      ///< a write into a shared block behind the first pieces of a medium
  kPreemptInMedium,   ///< a sequence that ended between two pieces was admitted again
  kTailShared,        ///< a running sequence's tail entered the tree for those who wait
  kFailedAhead,       ///< a step failed, and the one behind it, with rows of one sequence in both
  kCount
};
const char* to_text(Transition t);
using TransitionCounts = std::array<std::int64_t, static_cast<std::size_t>(Transition::kCount)>;

}  // namespace coppice::test
