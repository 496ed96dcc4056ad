// Prefixes that stay cached because somebody asked for it: what goes into the engine about them, and what comes out.
// Plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kv/namespace.h"

namespace coppice::engine {

/// Whose a pinned prefix is. Nobody else sees it, or ends it.
struct PrefixOwner {
  std::string payer;  ///< whose share of the pool it takes
  kv::Namespace ns;
  friend bool operator==(const PrefixOwner&, const PrefixOwner&) = default;
};

/// That a prompt's beginning stays cached.
struct PinWish {
  std::int32_t tokens = 0;      ///< of the prompt; whole blocks of them are pinned
  std::chrono::seconds ttl{0};  ///< > 0: its time to live
  /// An object of its own, which lives as long as was asked for last. Else it follows use: a request that begins with
  /// it renews it, and nothing shortens its time.
  bool object = false;
  std::string name;  ///< of an object
};

struct PrefixInfo {
  std::string id;  ///< the same for the same tokens in the same namespace
  std::string name;
  bool object = false;
  std::int32_t tokens = 0;         ///< of the prefix
  std::int32_t pinned_tokens = 0;  ///< those in whole blocks
  std::int64_t blocks = 0;         ///< other pins may hold them, too
  std::int64_t hits = 0;           ///< requests that began with all pinned tokens and found some
  std::int64_t saved_tokens = 0;   ///< that these did not have to compute
  std::chrono::seconds ttl{0};
  std::chrono::steady_clock::time_point since, expires;  ///< when it was pinned first, and when its time is over
};

/// Why there is no pin.
enum class PinRefusal : std::uint8_t {
  kTooShort,     ///< not a whole block is cached
  kOwnersShare,  ///< with it the owner's pins would hold `needed` blocks, of `most`
  kShare,        ///< with it all pins would
  kPromised,     ///< of the `needed` blocks that nobody holds all but `most` are promised to requests that run
  kTooMany,      ///< prefixes
  kNoMemory,     ///< of the process
  kRevoked,      ///< the owner may pin no more: its key is gone
};

struct PinOutcome {
  std::chrono::seconds asked_ttl{0};
  std::optional<PrefixInfo> prefix;  ///< none: refused
  PinRefusal refusal = PinRefusal::kTooShort;
  std::int64_t needed = 0, most = 0;  ///< blocks, as the refusal says
};

/// Where blocks are.
enum class CacheTier : std::uint8_t { kPool, kHost, kDisk, kRedis };

struct PrefixAnswer {
  std::vector<PrefixInfo> prefixes;  ///< kList, and those that kEnd ended
  std::int64_t ended = 0;            ///< kReset: pins
  std::int64_t blocks = 0;           ///< kReset: thrown out
  std::int64_t tokens = 0;           ///< kReset: thrown out
  bool absent = false;               ///< kReset: there is no such tier
};

/// A question or an order about pinned prefixes.
struct PrefixCommand {
  enum class Kind : std::uint8_t {
    kList,        ///< the owner's; with an id only that one
    kEnd,         ///< the owner's one with that id
    kReset,       ///< throws out all that no request holds, and all pins; of one tier, if one is named
    kKeepPayers,  ///< ends the pins of all but `payers`, and what stores hold of those who are `revoked`. From now on
                  ///< nobody else may pin, be the request here already, and nothing of the latter is stored
  };
  Kind kind = Kind::kList;
  PrefixOwner owner;
  std::string prefix;             ///< an id
  std::set<std::string> payers;   ///< of kKeepPayers
  std::set<std::string> revoked;  ///< of kKeepPayers: all that were revoked since the start
  std::optional<CacheTier> tier;  ///< of kReset; none: all
};

}  // namespace coppice::engine
