// FakeExecutor: an executor whose "keys" say which token at which position they belong to, so that every read
// of a wrong, stale or unwritten slot is seen: at once as a fault in words, and again as a wrong token in the
// generated text. It has a real store: copies are run in order, rows are written to their slots, and each row
// reads every position that it may see back through the tables.
//
// Like a model it has two layers: the second layer's key of a token depends on all that the token sees, so a
// block that holds the right tokens after a wrong past is wrong. Logits are a hash of all keys read; what they
// must be follows from the token history alone (tests/engine/oracle.h). Not thread safe.
#pragma once

#include <cstdint>
#include <functional>
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

void write_hash(std::uint64_t hash, std::span<float> row);
std::uint64_t read_hash(std::span<const float> row);

class FakeExecutor final : public executor::Executor {
 public:
  explicit FakeExecutor(const kv::CacheConfig& config, std::int32_t context_length = 0);

  const executor::ExecutorInfo& info() const override { return info_; }
  executor::Logits forward(const executor::Batch& batch) override;

  executor::HiddenStates hidden_states() const override { return {.data = hidden_states_, .n_embd = kFakeEmbd}; }

  /// forward() number `step` (from 0) throws StepError. Its copies are not run, its new slots hold garbage.
  void fail_at(int step) { failures_.insert(step); }

  /// Called in each forward(): looks at the engine in mid-step, or throws what an executor should not.
  void during_forward(std::function<void()> hook) { hook_ = std::move(hook); }

  double planning_seconds() const override { return claimed_seconds_ * static_cast<double>(steps_.size()); }
  /// Each forward() says that it planned for so long.
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
    bool failed = false;
  };
  const std::vector<StepLog>& steps() const { return steps_; }

  /// What went wrong so far, in words; empty: nothing.
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  struct Key {
    kv::Token token = kPoison;
    std::int32_t position = -1;
    std::int32_t group = -1;
    std::uint64_t deep = 0;  ///< the second layer's key
  };
  static constexpr kv::Token kPoison = INT32_MIN;

  /// What a page of a state holds: which page it is, of the state behind how many tokens, and a hash of these.
  struct StatePage {
    std::int32_t index = -1;
    std::int32_t length = -1;
    std::uint64_t hash = 0;
    friend bool operator==(const StatePage&, const StatePage&) = default;
  };

  void check(const executor::Batch& batch);
  void check_states(const executor::Batch& batch);
  bool has_states() const { return info_.groups.back().kind == kv::GroupKind::kRecurrent; }
  /// What the rows see of the states that they read, and what these become.
  void run_states(const executor::Batch& batch);
  std::uint64_t read_state(const executor::BatchSequence& sequence);
  void write_state(std::span<const kv::BlockId> pages, std::int32_t length, std::uint64_t hash);
  void copy(const kv::CopyOp& op);
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
  std::vector<float> logits_;
  std::vector<float> hidden_states_;
  std::set<int> failures_;
  std::function<void()> hook_;
  Mistake mistake_ = Mistake::kNone;
  double claimed_seconds_ = 0;
  std::vector<StepLog> steps_;
  std::vector<std::string> faults_;
};

}  // namespace coppice::testing
