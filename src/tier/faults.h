// Deliberate faults, compiled in only for the test that proves that the simulation would see them
// (coppice_tier_faulty).
#pragma once

#include <cstdint>

#include "check/fault.h"

namespace coppice::tier {

enum class Fault : std::uint8_t {
  kNone,
  kNoChecksum,         ///< a piece's bytes are believed
  kAnyName,            ///< a file is taken for the piece that its own name says, whatever its head says
  kShortReadIsWhole,   ///< what a short read left out is taken for zeros
  kShortWriteIsWhole,  ///< a short write is not gone on with
  kWrittenInPlace,     ///< a file has its name before it is whole
  kFoundTooEarly,      ///< a piece is found before its file has its name
  kUnsafeIsSafe,       ///< a write whose sync failed counts
  kNoLock,             ///< a folder is used while another server has it
  kLostLockUnseen,     ///< a lock file that somebody replaced is still one's own
  kNoEviction,         ///< what a folder may hold isn't looked at
  kNoReserve,          ///< the file system's free room isn't looked at
  kDamageStays,        ///< a damaged piece is found again
  kAsideStays,         ///< what a killed process left is never removed
  kBadWithoutEnd,      ///< damaged files are all kept
  kLinkFollowed,       ///< a link or another user's file is taken for a piece
  kForgottenReturns,   ///< a write that was under way when its piece was forgotten is found
  kNeverOnAgain,       ///< what was switched off stays off
  kEnd,
};

/// False in all builds but that one.
inline bool fault(Fault f) {
  return check::is_active(f);
}

}  // namespace coppice::tier
