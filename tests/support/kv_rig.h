// KvRig: a Cache, a byte store and a plain double of both, driven together. Each operation is checked against
// what cache.h promises of it; verify() then recomputes every figure and reads back every visible slot. The
// first thing found wrong is kept in words (failure()); later operations do nothing. Not thread safe.
//
// A step is what the engine makes of it: extend() any number of sequences, then run_step(): copies in order,
// writes, publish() of each. Everything else may happen between an extend() and its run_step(). Or submit() and, later,
// collect(), with other steps in between: a device runs each of them when it likes, in their order.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv/cache.h"
#include "support/kv_byte_store.h"
#include "support/kv_known_prefixes.h"
#include "support/kv_transitions.h"
#include "support/kv_words.h"

namespace coppice::test {

/// A sequence as the double sees it: its plain history.
struct Story {
  kv::Namespace ns;
  std::vector<kv::Token> tokens;       ///< [len] words
  std::vector<kv::Token> prompt;       ///< likewise
  std::vector<std::uint64_t> history;  ///< [len], history_next() up to and with each token
  std::int32_t cached = 0, computed = 0, published = 0;
  std::int32_t matched = 0;     ///< at admission: what no query behind it sees was not taken
  std::int32_t prompt_len = 0;  ///< its reservation carries it here and one token further
  bool draft = false;           ///< its last extension may be taken back, states and all
  std::int32_t promised =
      -1;               ///< reserved before the first extension that is not published; -1: it may have changed since
  bool broken = false;  ///< its step failed: nothing since the last publish can be read
  bool tail_forked = false;  ///< by a step that is not published
  int forks_left = 0;
  std::int32_t left_to_others = 0;  ///< blocks that its windows left while others held them: they paid for no other
  kv::BlockId once_shared_tail = kv::kNullBlock;  ///< group 0's
  std::vector<RowWrite> writes;                   ///< of the step in hand
  std::vector<StateWork> state;                   ///< likewise; one, or none
  std::vector<std::int32_t> wanted_states;        ///< positions, besides every stride
  std::vector<std::int32_t> wanted_tails;         ///< share_tail()
  std::int32_t tails_shared = 0;

  std::int32_t len() const { return static_cast<std::int32_t>(tokens.size()); }
  bool at_rest() const { return computed == len(); }
};

using Tables = std::vector<std::vector<kv::BlockId>>;  ///< [group][block index]

struct PinStory {
  kv::Namespace ns;
  std::string owner;
  std::vector<kv::Token> tokens;  ///< the pinned ones
};

/// kv::PinRequest, in words.
struct PinWords {
  std::span<const kv::Token> prefix;
  kv::Namespace ns;
  std::string_view owner;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  std::int64_t most_of_owner = std::numeric_limits<std::int64_t>::max();
};

/// Texts are words (kv_words.h).
class KvRig {
 public:
  explicit KvRig(kv::CacheConfig config, bool verify_each = true);

  // Operations of Cache, each with its checks. nullopt and false: the cache refused.
  std::optional<kv::SeqId> admit(std::span<const kv::Token> prompt, const kv::Namespace& ns = {}, int n_samples = 1);
  bool extend(kv::SeqId seq, std::span<const kv::Token> tokens, bool draft = false);
  /// The lengths that a sequence can be rewound to now.
  std::vector<std::int32_t> rewinds(kv::SeqId seq) const;
  void rewind(kv::SeqId seq, std::int32_t len);
  std::int32_t max_extend() const { return config_.max_extend; }  ///< tokens
  /// Submits the step in hand; the device runs it at once, or just before it is collected.
  void submit(bool runs_at_once);
  /// How many of a sequence's rows in a step are accepted; the others are taken back.
  using Accept = std::function<std::int32_t(const Story&, std::int32_t rows)>;
  /// Waits for the oldest step that was submitted, and publishes it; `accept`: in part. REQUIRES: in_flight() > 0.
  void collect(const Accept& accept = {});
  std::size_t in_flight() const { return flights_.size(); }
  /// Submits the step in hand and collects all.
  void run_step(const Accept& accept = {});
  /// The executor threw, before or after the copies of the oldest step: every sequence with tokens in that or one
  /// behind it ends.
  void fail_step(bool copies_done);
  kv::SeqId fork(kv::SeqId seq);
  void finish(kv::SeqId seq);
  void abandon(kv::SeqId seq);
  std::optional<kv::Pinned> pin(const PinWords& request);
  void unpin(kv::PinId pin);
  void clear();
  std::int32_t match(std::span<const kv::Token> tokens, const kv::Namespace& ns = {});
  void keep_state(kv::SeqId seq, std::int32_t position);
  void share_tail(kv::SeqId seq, std::int32_t position);

  /// Ends everything and proves that nothing leaked: one prompt then gets the whole pool.
  void drain();
  void verify();
  /// Whether verify() asks the cache's own check_integrity() too; the fault test tries it without.
  void trust_integrity(bool on) { check_integrity_ = on; }
  /// ... and what this finds wrong.
  void check_also(std::function<std::string()> also) { also_ = std::move(also); }

  kv::Cache& cache() { return cache_; }
  const kv::Cache& cache() const { return cache_; }
  KvByteStore& store() { return store_; }
  const std::string& failure() const { return failure_; }
  const std::map<kv::SeqId, Story>& live() const { return live_; }
  const std::map<kv::PinId, PinStory>& pins() const { return pins_; }
  /// Whether something that was published may be gone.
  bool evicted() const { return cleared_ || cache_.stats().evictions > 0; }
  const std::vector<kv::BlockOp>& copies_in_hand() const { return copies_; }
  const TransitionCounts& met() const { return met_; }
  void count(Transition t) { ++met_[static_cast<std::size_t>(t)]; }
  std::int64_t operations() const { return operations_; }
  bool step_in_hand() const;

  /// The rows that a contiguous buffer would hold: [len] of one group.
  std::vector<Row> contiguous_rows(kv::SeqId seq, int group) const;
  /// What the store holds at the sequence's slots, [len] of one group.
  std::vector<Row> stored_rows(kv::SeqId seq, int group) const;

 private:
  struct Flight {
    StoreStep step;
    std::vector<std::pair<kv::SeqId, std::int32_t>> parts;  // tokens of each
    bool ran = false;
  };

  bool begin(const char* operation);  ///< false once something failed
  void end();
  void fail(const std::string& why);

  int n_groups() const { return static_cast<int>(config_.groups.size()); }
  std::int32_t window_start(int group, std::int32_t computed) const;
  std::int32_t next_window_start(int group, std::int32_t computed) const;
  int first_alike(int group) const;
  Tables tables(kv::SeqId seq) const;
  void plan_writes(kv::SeqId seq, Story& story, std::int32_t first);
  void publish(kv::SeqId seq, std::int32_t n);
  void note_partials(const Story& story, std::int32_t until);
  void note_shared_tail(Story& story, const kv::CacheStats& before);
  std::int32_t matched(std::span<const kv::Token> words, const kv::Namespace& ns) const {
    return cache_.match(to_kv(words), ns);
  }
  void note_end(kv::SeqId seq);
  void publish_all(const Story& story);
  bool window_moved(kv::SeqId seq) const;

  // Steps (kv_rig_steps.cpp).
  void run(Flight& flight);
  bool copies_pending() const;
  bool written_in_flight(kv::BlockId block) const;

  // States of recurrent layers (kv_rig_states.cpp).
  bool has_states() const { return config_.state_pages > 0; }
  std::uint64_t history_at(const Story& story, std::int32_t length) const;
  void plan_state(kv::SeqId seq, Story& story, std::int32_t first);
  void note_state_hit(kv::SeqId seq, Story& story, std::span<const kv::Token> prompt, std::int32_t known_before);
  void note_state_taken(kv::SeqId seq, std::span<const kv::Token> before);
  void note_kept_state(kv::SeqId seq, const Story& story);
  void note_last_state(const Story& story);
  void note_lost_states();
  std::int32_t longest_kept(std::span<const kv::Token> tokens, const kv::Namespace& ns, std::int32_t known) const;
  void count_state_holders();
  void verify_state(kv::SeqId seq, const Story& story);

  // Pins (kv_rig_pins.cpp).
  void check_pin(const PinWords& request, const kv::Pinned& pinned, const kv::CacheStats& before);
  void check_pin_refusal(const PinWords& request, const kv::NoPin& no_pin, const kv::CacheStats& stats);
  std::set<kv::BlockId> blocks_of_pins(const std::string* owner = nullptr) const;
  void verify_pin(kv::PinId pin, const PinStory& story);

  // The checks (kv_rig_checks.cpp).
  void check_match(std::int32_t length, std::span<const kv::Token> tokens, const kv::Namespace& ns);
  void check_refusal(const kv::NoRoom& why, std::int32_t prompt_len, std::int32_t cached, int n_samples);
  void check_extended(kv::SeqId seq, const Tables& before, std::size_t old_copies, std::int32_t n_tokens);
  void check_out_of_blocks(kv::SeqId seq, const Tables& before, std::int32_t n_tokens, bool draft,
                           const kv::CacheStats& stats);
  void check_published(kv::SeqId seq, const Tables& before, std::int32_t old_published);
  void note_left_to_others(kv::SeqId seq, const Tables& before);
  bool is_held(kv::BlockId block) const;
  void verify_figures();
  void verify_sequence(kv::SeqId seq, const Story& story);
  void verify_reservation(kv::SeqId seq, const Story& story);

  kv::CacheConfig config_;
  kv::Cache cache_;
  KvByteStore store_;
  bool verify_each_;
  bool check_integrity_ = true;
  std::function<std::string()> also_;
  std::map<kv::SeqId, Story> live_;
  std::map<kv::PinId, PinStory> pins_;
  bool cleared_ = false;
  std::vector<kv::BlockOp> copies_;  // of the step in hand
  std::deque<Flight> flights_;       // submitted, the oldest first
  KnownPrefixes known_;
  std::map<kv::Digest, std::vector<kv::Token>> named_;  // texts of pins by their names
  std::unordered_set<std::uint64_t> partials_;          // history hashes at the ends of published partial tails
  std::map<kv::SeqId, std::int32_t> ends_;         ///< CacheConfig::keep_ends: where the last such state of each stood
  std::unordered_set<std::uint64_t> kept_states_;  // history hashes of the prefixes that states were ever kept of
  struct WatchedState {
    kv::Namespace ns;
    std::vector<kv::Token> tokens;
  };
  std::vector<WatchedState> watched_states_;  // that stood in the tree at the last look
  std::vector<int> holders_;                  // [num_blocks], sequences and pins, as of the last verify()
  std::size_t peak_seen_ = 0;
  TransitionCounts met_{};
  std::int64_t operations_ = 0;
  const char* operation_ = "";
  std::string failure_;
};

}  // namespace coppice::test
