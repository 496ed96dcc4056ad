// Store: a place outside of the pool for what it computed: a disk, another machine. Abstract. It knows names and bytes,
// no tokens, no trees.
//
// A store is never needed: whatever is amiss with it (slow, full, broken, gone) is a miss or a dropped write, and no
// caller can tell the difference. It says so in its counters, and in the log once.
//
// Another store: a folder beside tier/redis. It derives from QueuedStore (queued_store.h) if it answers on threads of
// its own. cli/kv_tier.cpp has its options and makes it. Its kind: StoreKind and to_string() below, CacheTier
// (engine/pinned_prefix.h), store_kind_of() (engine/step_loop.cpp), tier_of() (server/api/api_prefixes.cpp),
// medium_of() (events/stored_blocks.cpp), PLACES (web/figures.js). Tests: tests/tier.
//
// Thread-safe. No call waits for the disk or the network. Functions that a caller passes are called once each, on a
// thread of the store's, in any order, before stop() returns; they return soon, throw nothing, and call nothing of the
// store but load() and offer().
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "port/move_only_function.h"
#include "tier/buffers.h"
#include "tier/name.h"

namespace coppice::tier {

using Clock = std::chrono::steady_clock;

/// What kind of place a store is.
enum class StoreKind : std::uint8_t { kHost, kDisk, kRedis };
/// As clients and operators name it.
constexpr const char* to_string(StoreKind place) {
  return place == StoreKind::kHost ? "host" : place == StoreKind::kDisk ? "disk" : "redis";
}

/// Of one place. Sums since start, unless it says "now".
struct Counters {
  StoreKind kind = StoreKind::kDisk;
  bool on = false;             ///< now: it takes and gives pieces
  std::string off_because;     ///< now: one line; empty while it is on
  std::int64_t pieces = 0;     ///< now: held
  std::int64_t bytes = 0;      ///< now: held
  std::int64_t max_bytes = 0;  ///< now: it may hold; 0: no limit of its own
  std::int64_t pending = 0;    ///< now: writes that were taken and aren't done
  bool no_room = false;        ///< now: its limits leave no room for a piece, though it is on

  std::int64_t finds = 0;        ///< names that were asked for
  std::int64_t found = 0;        ///< of these it held
  std::int64_t loads = 0;        ///< pieces that came
  std::int64_t load_misses = 0;  ///< pieces that didn't, whatever the cause
  std::int64_t load_bytes = 0;
  double load_seconds = 0;  ///< of its threads, reading
  std::int64_t writes = 0;  ///< pieces that are safe
  std::int64_t write_bytes = 0;
  double write_seconds = 0;    ///< of its threads, writing
  std::int64_t dropped = 0;    ///< writes that were not taken, or given up: pressure, no room, off
  std::int64_t evicted = 0;    ///< pieces that went for room, age or a limit
  std::int64_t damaged = 0;    ///< pieces that didn't open, and were put aside
  std::int64_t io_errors = 0;  ///< of the system or the peer
  std::int64_t switch_offs = 0;
};

/// Which pieces are to go: those that meet all that is given.
struct Which {
  std::optional<StoreKind> kind;                             ///< of two stores the one that is there
  std::optional<std::array<std::uint8_t, 16>> model, space;  ///< Name's
  std::optional<std::chrono::seconds> unused_for;            ///< neither written nor loaded for so long
};

class StoreObserver;

class Store {
 public:
  virtual ~Store() = default;

  /// Which of these it holds, in their order. A hint: what is held may be gone when it is asked for.
  using Found = port::MoveOnlyFunction<void(std::vector<bool> held)>;
  virtual void find(std::vector<Name> names, Found done) = 0;

  /// Reads a piece into `into`. Its bytes() are what was written under that name, as far as the store knows; size() ==
  /// 0: a miss. The function says whether they open as what the name says (piece.h): those that don't are put aside,
  /// and never found again. What it says of a miss is ignored.
  using Loaded = port::MoveOnlyFunction<bool(Buffer got)>;
  virtual void load(const Name& name, Buffer into, Loaded done) = 0;
  /// Pieces are given in the buffers in which it keeps them: `into` may be none.
  virtual bool shares() const { return false; }

  /// Writes a piece, sometime: `piece.bytes()`, which it seals first (piece.h), on a thread of its own. False: it is
  /// dropped. What it holds under this name already is as good, and counts as used. Found and loaded once it is safe:
  /// whole, or not there, also if the process dies.
  virtual bool offer(const Name& name, Buffer piece) = 0;

  /// The same of what nobody has used a second time, and the pool gives up.
  virtual bool offer_once(const Name& name, Buffer piece) { return offer(name, std::move(piece)); }

  /// Pieces are found no more when this returns, writes that were taken included; their room comes back by and by.
  virtual void forget(const Which& which) = 0;

  /// From now on this one is told which pieces of a model (Name::model) it holds, first of those that it holds already,
  /// by and by. Once. What is in another machine is not told. The observer outlives stop().
  virtual void observe(StoreObserver& /*observer*/, const std::array<std::uint8_t, 16>& /*model*/) {}

  virtual bool is_at(StoreKind place) const = 0;
  /// Of each place that it is, those that are asked first first.
  virtual std::vector<Counters> places() const = 0;

  /// Finishes writes that were taken, until then; drops the others. From the call on it takes and gives nothing. All
  /// functions were called when it returns.
  virtual void stop(Clock::time_point until) = 0;
};

}  // namespace coppice::tier
