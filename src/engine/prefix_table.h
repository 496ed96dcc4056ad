// PrefixTable: the pinned prefixes, whose they are and how long they live. The cache holds their blocks
// (kv/pin_table.h); what pins may hold is decided here. Not thread safe; the engine's thread owns it.
//
// Invariants
//  1. All pins together hold at most `most` blocks, an owner's at most `most_of_owner`.
//  2. A new pin is refused rather than an old one ended. But a pin never makes a request impossible: one that has the
//     pool for itself, and no room beside the pins, ends as many as it must.
//  3. An owner has one pin of the same tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "engine/config.h"
#include "engine/pinned_prefix.h"
#include "engine/request.h"
#include "kv/cache.h"

namespace coppice::engine {

class PrefixTable {
 public:
  PrefixTable(kv::Cache& cache, const EngineConfig& config);

  /// Pins what is cached of a prompt's beginning, or renews that. Memory runs out: a refusal.
  PinOutcome pin(const Request& request, const PinWish& wish, Clock::time_point now) noexcept;

  /// A request has started on `cached` tokens that were found.
  void count_hits(const Request& request, std::int32_t cached, Clock::time_point now);

  /// Ends pins until they hold `blocks` less, or there are none: first those that the request doesn't begin with, of
  /// these marks before objects, of equals those whose time is over first. False: there was none.
  bool give_way(const Request& request, std::int64_t blocks);

  /// Ends those whose time is over. Returns whether there were any.
  bool expire(Clock::time_point now);
  /// When the first one's time is over.
  std::optional<Clock::time_point> next_expiry() const;

  /// kKeepPayers takes no memory: what a revoked key pinned goes in any case.
  PrefixAnswer obey(PrefixCommand&& command);

  std::int64_t changes() const {
    return changes_;
  }  ///< grows with each pin that is made, renewed or ended, and each reset
  std::int64_t given_up() const { return given_up_; }  ///< pins that gave way

 private:
  static constexpr std::size_t kMost = 4096, kMostOfPayer = 1024;  ///< pins: each takes memory besides its blocks

  struct Entry {
    kv::PinId pin{};
    PrefixInfo info;
  };
  /// Payer, namespace, id: the order in which an owner's stand together.
  using Key = std::tuple<std::string, kv::Namespace, std::string>;
  using Entries = std::map<Key, Entry>;

  /// `known`: Cache::whole_blocks() of a text that may begin with all that the entry holds.
  bool begins_with(std::span<const kv::BlockId> known, const Entry& entry) const;
  PinOutcome add(const Request& request, const PinWish& wish, Clock::time_point now);
  std::size_t count_of(const std::string& payer) const;
  Entries::iterator end(Entries::iterator entry);

  kv::Cache& cache_;
  std::int64_t most_;
  std::int64_t most_of_payer_;
  Entries entries_;
  std::int64_t changes_ = 0, given_up_ = 0;
  std::optional<std::set<std::string>> payers_;  ///< who may pin; none: everybody
};

}  // namespace coppice::engine
