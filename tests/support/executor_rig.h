// ExecutorRig: plays the cache for executor tests: hands out blocks (in order or shuffled), keeps tables, builds
// batches, runs steps.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "executor/executor.h"

namespace coppice::test {

struct RigSequence {
  std::vector<kv::BlockId> blocks;             ///< of the first group of layers
  std::vector<std::vector<kv::BlockId>> more;  ///< of the others
  /// States of a model with recurrent layers, by position: one behind each step, but for steps of one row that follow
  /// such a step, which write over theirs.
  std::map<int, std::vector<kv::BlockId>> states;
  bool writes_over = false;  ///< the last step had one row, and nobody else has its state
  int len = 0;               ///< tokens in the pool
};

enum class Want { kNone, kLast, kAll };

struct RigPart {
  RigSequence* sequence;
  std::span<const kv::Token> tokens;
  Want want = Want::kLast;
};

using Row = std::vector<float>;

class ExecutorRig {
 public:
  /// shuffle_seed 0: blocks in order.
  explicit ExecutorRig(executor::Executor& executor, std::uint32_t shuffle_seed = 0);

  /// A sequence on the first n tokens of another: whole blocks shared, a partial one forked by a BlockOp that runs in
  /// the next step; the state at n shared. REQUIRES: a step of `from` ended at n, if the model has recurrent layers.
  RigSequence fork(const RigSequence& from, int n);

  /// A block that nobody has.
  kv::BlockId take();
  void add_copy(kv::BlockOp op) { copies_.push_back(op); }

  /// The batch of a step; grows the sequences. REQUIRES: run it, the sequences count its tokens as written.
  executor::Batch batch(std::span<const RigPart> parts);
  /// Runs a step. Logits of the rows wanted, in row order.
  std::vector<Row> step(std::span<const RigPart> parts);
  std::vector<Row> step(const RigPart& part) { return step(std::span(&part, 1)); }
  std::vector<Row> run(const executor::Batch& batch);

  /// Appends tokens in chunks of at most `chunk` rows.
  std::vector<Row> feed(RigSequence& sequence, std::span<const kv::Token> tokens, int chunk, Want want = Want::kLast);

  int block_size() const { return block_size_; }

 private:
  int state_pages() const;
  void add_states(RigSequence& sequence, executor::BatchSequence& part);
  /// The tables of a sequence, one of each group that has some.
  std::vector<std::vector<kv::BlockId>*> tables(RigSequence& sequence) const;

  executor::Executor& executor_;
  int block_size_;
  std::vector<kv::BlockId> free_;  ///< taken from the back
  std::vector<kv::BlockOp> copies_;
};

/// Root mean square of a - b over that of b.
double relative_rms(std::span<const float> a, std::span<const float> b);
kv::Token argmax(std::span<const float> row);

}  // namespace coppice::test
