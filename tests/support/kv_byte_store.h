// KvByteStore: the bytes that kv never moves. It stands in for the executor's KvStore in kv's tests: a page holds rows
// of bytes for each layer of one group, slot by slot; copies run in list order, then writes. A wrong, stale or uncopied
// slot is seen by reading back. Owns its memory. Not thread safe.
//
// Invariants
//  1. The null block stays zeroed: a copy or write that touches it is refused in words.
//  2. The slots written by one step are distinct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/cache_config.h"

namespace coppice::test {

/// What a group's layers would have made of one token: it depends on the group, the position and on every
/// token before it, as real keys and values do.
struct Row {
  kv::Token token = 0;
  std::int32_t position = 0;
  std::int32_t group = 0;
  std::int32_t filled = 0;    ///< 1; tells a row from a zeroed slot
  std::uint64_t history = 0;  ///< hash of the namespace and tokens [0, position]
  friend bool operator==(const Row&, const Row&) = default;
};
static_assert(sizeof(Row) == 24, "rows are compared as bytes: no padding");

/// The history hash before the first token.
std::uint64_t history_root(const kv::Namespace& ns);
/// The history hash after one token more.
std::uint64_t history_next(std::uint64_t history, kv::Token token);

std::string to_text(const Row& row);

struct RowWrite {
  kv::Slot slot = 0;
  Row row;
};

/// What a step does for one sequence with its state: it reads one and writes one. A page of a state is full of the same
/// row: its token is the page's index in the state, its position how many tokens the state stands for, its history
/// theirs.
struct StateWork {
  std::vector<kv::BlockId> in, out;  ///< pages; `in` is empty at the start of a text
  std::int32_t in_length = 0, out_length = 0;
  std::uint64_t in_history = 0, out_history = 0;
};

/// A step's work on the store.
struct StoreStep {
  std::vector<kv::BlockOp> copies;
  std::vector<RowWrite> writes;
  std::vector<StateWork> states;
};

/// Deliberate faults of an executor, switched on by the fault test.
enum class StoreFault {
  kNone,
  kCopySkipped,     ///< a step's last copy is not run
  kCopyOneShort,    ///< every copy leaves out its last slot
  kCopyOneLayer,    ///< every copy leaves out the layers behind the first
  kCopyTooLate,     ///< copies run after the step's writes
  kCopiesReversed,  ///< copies run last to first
  kTailOffByOne,    ///< a step's last row is written one slot too far
  kWriteLost,       ///< a step's last row is not written
  kCopyOfLastStep,  ///< copies run one step late
  kStateLost,       ///< a step's last state is not written
  kStatePageLost,   ///< of every state the last page is not written
};

class KvByteStore {
 public:
  explicit KvByteStore(const kv::CacheConfig& config);

  /// Runs the copies in order, then the writes. Returns what was wrong with the step, or an empty string.
  std::string run(const StoreStep& step);

  /// A step whose forward pass broke: its copies are done, what it wrote is rubbish.
  std::string run_failed(const StoreStep& step);

  /// The row of one slot, in the group's layer `layer`.
  Row row(kv::Slot slot, int layer = 0) const;
  int n_layers(int group) const { return n_layers_[static_cast<std::size_t>(group)]; }

  /// What is wrong with a state that should stand for so many tokens of this history; or an empty string.
  std::string error_in_state(std::span<const kv::BlockId> pages, std::int32_t length, std::uint64_t history) const;

  void set_fault(StoreFault fault) { fault_ = fault; }

 private:
  std::string copy(const kv::BlockOp& op);
  std::string copy_all(std::vector<kv::BlockOp> copies);
  std::string write(kv::Slot slot, const Row& row);
  std::string run_states(const std::vector<StateWork>& states);
  std::string write_state(const StateWork& state);
  std::size_t place(kv::Slot slot, int layer) const;

  std::int32_t num_blocks_;
  int block_size_;
  std::vector<int> n_layers_;              // [groups]
  int layers_in_page_;                     // of the largest group
  std::vector<std::byte> bytes_;           // [num_blocks, layers_in_page, block_size, sizeof(Row)]
  std::vector<std::uint32_t> written_in_;  // [num_blocks, block_size], the step that last wrote the slot
  std::uint32_t step_ = 0;
  StoreFault fault_ = StoreFault::kNone;
  std::vector<kv::BlockOp> late_;  // kCopyOfLastStep
};

}  // namespace coppice::test
