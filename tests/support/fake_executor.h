// FakeExecutor: an executor whose "keys" say which token at which position they belong to, so that every read
// of a wrong, stale or unwritten slot is seen: at once as a fault in words, and again as a wrong token in the
// generated text. It has a real store: block operations are run in order, rows are written to their slots, and each row
// reads every position that it may see back through the tables.
//
// Like a model it has two layers: the second layer's key of a token depends on all that the token sees, so a
// block that holds the right tokens after a wrong past is wrong. Logits are a hash of all keys read; what they
// must be follows from the token history alone (tests/engine/oracle.h). Not thread safe.
//
// With depth 1 it is a device that works by itself: it keeps a copy of what it was told, and a seeded coin says of each
// step whether it runs when it is submitted, sampled, or at the last moment. A step that fails leaves garbage, and so
// does the one behind it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::testing {

/// What recurrent layers make of a text is a hash over its tokens, this one before the first.
inline constexpr std::uint64_t kStateRoot = 77;

/// Logits rows hold the hash in four floats of 16 bits each; the rest of a row is zero.
inline constexpr int kFakeVocab = 8;

/// A hidden state holds another hash likewise: mix(the hash of the logits, 1).
inline constexpr int kFakeEmbd = 4;

/// One step of an order-dependent hash.
constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 12) + (hash >> 4);
  hash *= 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

/// What the fake makes of a row that is no token: a number that no token is.
kv::Token embedding_symbol(std::span<const float> embedding);
/// And of the position that a row is rotated by; 0: its index.
std::uint64_t rotation_of(const executor::RopePosition& position, std::int32_t index);

void write_hash(std::uint64_t hash, std::span<float> row);
std::uint64_t read_hash(std::span<const float> row);

class FakeExecutor final : public executor::Executor {
 public:
  explicit FakeExecutor(const kv::CacheConfig& config, std::int32_t context_length = 0, int depth = 0,
                        std::uint64_t seed = 1);

  const executor::ExecutorInfo& info() const override { return info_; }
  int depth() const override { return depth_; }
  executor::Step submit(const executor::Batch& batch) override;
  void sample(executor::Step step, std::span<const sampling::SamplerSpec> specs) override;
  executor::Result wait(executor::Step step) override;

  /// Step number `step` (from 0) fails: submit() throws StepError, or with depth 1 wait(). Its copies are not run, its
  /// new slots hold garbage.
  void fail_at(int step) { failures_.insert(step); }

  /// Called in each submit(): looks at the engine in mid-step, or throws what an executor should not.
  void during_forward(std::function<void()> hook) { hook_ = std::move(hook); }

  bool sleep() override {
    if (lost_) throw executor::StepError("the device is lost");
    asleep_ = can_sleep_;
    return asleep_;
  }
  bool wake(std::chrono::steady_clock::time_point /*until*/) override {
    if (!asleep_) faults_.emplace_back("it was woken awake");
    if (std::exchange(bad_wakes_, std::max(0, bad_wakes_ - 1)) > 0) throw executor::OutOfMemory("no memory to wake");
    asleep_ = ++woken_ % wakes_in_ != 0;
    return !asleep_;
  }
  bool asleep() const { return asleep_; }
  void never_sleep() { can_sleep_ = false; }
  void fail_sleep() { lost_ = true; }
  void fail_wakes(int n) { bad_wakes_ = n; }  ///< the next ones
  void wake_in(int calls) { wakes_in_ = calls; }

  double planning_seconds() const override { return claimed_seconds_ * static_cast<double>(steps_.size()); }
  /// As a device that can't: no embeddings, or no positions.
  void refuse(bool embeddings, bool positions) {
    if (embeddings) info_.embedding_size = 0;
    info_.positions &= !positions;
  }
  /// Each step says that it planned for so long.
  void claim_planning(double seconds) { claimed_seconds_ = seconds; }

  /// Deliberate mistakes, to prove that they are seen.
  enum class Mistake : std::uint8_t { kNone, kSkipCopies, kCopyOneSlotLess, kWrongSlot, kSkipState };
  void make(Mistake mistake) { mistake_ = mistake; }

  struct SequenceLog {
    std::int32_t first_position = 0;
    int n_rows = 0;
    bool logits = false;
  };
  struct StepLog {
    std::vector<SequenceLog> sequences;
    int n_rows = 0;
    std::size_t n_copies = 0;
    std::size_t n_logits = 0;  ///< rows of them
    std::size_t n_hidden = 0;  ///< rows of hidden states
    std::size_t n_drawn = 0;   ///< rows whose token the step before it draws
    bool failed = false;
  };
  const std::vector<StepLog>& steps() const { return steps_; }

  /// Each step that was submitted was waited for.
  bool idle() const { return flights_.empty(); }

  /// What went wrong so far, in words; empty: nothing.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  struct Key {
    kv::Token token = kPoison;
    std::int32_t position = -1;
    std::int32_t group = -1;
    std::uint64_t rotation = 0;  ///< by another position than its own
    std::uint64_t deep = 0;      ///< the second layer's key
  };
  static constexpr kv::Token kPoison = INT32_MIN;

  /// What a page of a state holds: which page it is, of the state behind how many tokens, and a hash of these.
  struct StatePage {
    std::int32_t index = -1;
    std::int32_t length = -1;
    std::uint64_t hash = 0;
    friend bool operator==(const StatePage&, const StatePage&) = default;
  };

  struct Flight {
    std::size_t number = 0;  ///< of steps_
    executor::Batch batch;
    std::vector<std::vector<kv::BlockId>> blocks;  ///< that its views view
    std::list<std::vector<float>> embeddings;      ///< likewise
    std::vector<sampling::SamplerSpec> specs;
    bool sampled = false, ran = false, failed = false;
    std::vector<float> logits, hidden_states;
    std::vector<std::uint64_t> hashes;  ///< of the rows that are sampled
    std::vector<kv::Token> tokens;      ///< drawn
  };

  void log(const executor::Batch& batch);
  static void keep(const executor::Batch& batch, Flight& flight);
  /// Runs it, and before it those that were submitted before.
  void run_up_to(Flight& last);
  void run(Flight& flight);
  void compute(const executor::Batch& batch, Flight& flight);
  bool coin() { return random_() % 2 == 0; }

  void check(const executor::Batch& batch);
  void check_drawn(const executor::Batch& batch);
  void check_states(const executor::Batch& batch);
  bool has_states() const { return info_.groups.back().kind == kv::GroupKind::kRecurrent; }
  /// What the rows see of the states that they read, and what these become.
  void run_states(const executor::Batch& batch);
  std::uint64_t read_state(const executor::BatchSequence& sequence);
  void write_state(std::span<const kv::BlockId> pages, std::int32_t length, std::uint64_t hash);
  void run_op(const kv::BlockOp& op, const executor::Batch& batch);
  void copy(const kv::BlockOp& op);
  void write(const executor::Batch& batch);
  void poison(const executor::Batch& batch);
  /// The keys of one layer that a row at `position` sees, over all groups, hashed.
  std::uint64_t attend(const executor::BatchSequence& sequence, int row, std::int32_t position, bool deep);
  void fault(std::string what);
  Key& key(kv::Slot slot) { return store_.at(static_cast<std::size_t>(slot)); }

  executor::ExecutorInfo info_;
  std::vector<Key> store_;                 ///< [num_blocks * block_size]
  std::vector<StatePage> state_pages_;     ///< [num_blocks]
  std::vector<std::uint64_t> row_states_;  ///< [rows of the step]: a hash of the tokens up to each
  int depth_;
  std::mt19937_64 random_;
  std::deque<Flight> flights_;  ///< submitted and not waited for
  Flight last_;                 ///< that was waited for
  std::set<int> failures_;
  std::function<void()> hook_;
  Mistake mistake_ = Mistake::kNone;
  double claimed_seconds_ = 0;
  std::vector<StepLog> steps_;
  std::vector<std::string> faults_;
  bool asleep_ = false, can_sleep_ = true, lost_ = false;
  int bad_wakes_ = 0, woken_ = 0, wakes_in_ = 1;
};

}  // namespace coppice::testing
