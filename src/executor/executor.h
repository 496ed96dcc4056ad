// The executor: runs steps of the model over ragged batches. Abstract; knows no tensor library and no scheduler.
//
// One thread calls an executor, but for what says "any thread". Positions are counted from 0, in rows of a sequence;
// seconds are sums since start; arrays have the shape in brackets, with the last dimension contiguous.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/types.h"
#include "sampling/sampler_spec.h"

namespace coppice::executor {

/// What a row computes. A token converts to one.
struct RowSource {
  enum class Kind : std::uint8_t {
    kToken,  ///< `number`: of the vocabulary
    kDrawn,  ///< the token that a sample of the step submitted just before gives; `number`: of that step's sample_rows
    kEmbedding,  ///< no token, but values in its place; `number`: of Batch::embeddings
  };
  Kind kind = Kind::kToken;
  std::int32_t number = 0;

  RowSource() = default;
  RowSource(kv::Token token) : number(token) {}  // NOLINT(google-explicit-constructor): most rows are tokens
  static RowSource drawn(std::int32_t sample) { return {Kind::kDrawn, sample}; }
  static RowSource embedding(std::int32_t index) { return {Kind::kEmbedding, index}; }
  friend bool operator==(const RowSource&, const RowSource&) = default;

 private:
  RowSource(Kind k, std::int32_t n) : kind(k), number(n) {}
};

/// What a model rotates a row's heads by that knows more than a running number: in pictures time, height and width. It
/// decides nothing about slots and what a row sees: that is its index in the sequence, and the cache knows no other.
struct RopePosition {
  std::int32_t time = 0, height = 0, width = 0;
  friend bool operator==(const RopePosition&, const RopePosition&) = default;
};

/// One sequence's rows in a step. Its i-th row has the index first_position + i in the sequence, and its keys and
/// values are written to tables[g].slot(first_position + i).
struct BatchSequence {
  int n_rows = 0;                       ///< at least 1
  std::int32_t first_position = 0;      ///< absolute; the sequence has this many keys already
  std::vector<kv::TableView> tables;    ///< one per layer group that has tables; covers [0, first_position + n_rows)
  std::vector<kv::BothWays> both_ways;  ///< inside [first_position, first_position + n_rows); ascending, apart
  /// Of a model with recurrent layers (else both are empty): pages of the state at first_position, which is read
  /// (empty: position 0, a state of zeros), and of the one at first_position + n_rows, which is written: [state_pages]
  /// each. They may be the same. Valid as long as the tables.
  std::span<const kv::BlockId> state_in, state_out;
};

/// A step's work, plain data. It may have no rows, but operations on blocks alone.
/// Invariants: the first sequence's rows come first, then the second one's, and so on: n_rows() in all. A page of a
/// state_out is in no other sequence's state_out or state_in; several sequences may read one state_in.
struct Batch {
  /// Run in order before the first write. No row of this batch sees what is loaded.
  std::vector<kv::BlockOp> block_ops;
  /// Memory to which blocks are stored, and from which they are loaded: ExecutorInfo::outside_bytes() or more each.
  /// Needed until wait() returns, and what was stored is there then.
  std::vector<std::span<std::byte>> outside;
  std::vector<RowSource> rows;  ///< [n_rows]
  /// [embedding_size] each, of rows that have one. Needed until submit() returns.
  std::vector<std::span<const float>> embeddings;
  std::vector<RopePosition> positions;  ///< [n_rows]; empty: each row's index in its sequence, three times
  std::vector<BatchSequence> sequences;
  std::vector<std::int32_t> logit_rows;   ///< rows whose logits are wanted, ascending
  std::vector<std::int32_t> hidden_rows;  ///< rows whose hidden states are wanted, ascending

  /// Of executors that work ahead; else it is empty, and no row is drawn.
  /// Rows behind which sample() draws a token, ascending; they may be logit_rows, too.
  std::vector<std::int32_t> sample_rows;

  int n_rows() const { return static_cast<int>(rows.size()); }
};

/// Logits of the rows asked for: [n_rows, n_vocab], f32, in the order of Batch::logit_rows.
struct Logits {
  std::span<float> data;
  int n_vocab = 0;

  std::span<float> row(std::size_t i) const {
    return data.subspan(i * static_cast<std::size_t>(n_vocab), static_cast<std::size_t>(n_vocab));
  }
  Logits rows(std::size_t first, std::size_t n) const {
    const auto width = static_cast<std::size_t>(n_vocab);
    return {.data = data.subspan(first * width, n * width), .n_vocab = n_vocab};
  }
};

/// Hidden states of the rows asked for, behind the model's last norm: [n_rows, n_embd], f32, in the order of
/// Batch::hidden_rows.
struct HiddenStates {
  std::span<const float> data;
  int n_embd = 0;

  std::span<const float> row(std::size_t i) const {
    return data.subspan(i * static_cast<std::size_t>(n_embd), static_cast<std::size_t>(n_embd));
  }
  HiddenStates rows(std::size_t first, std::size_t n) const {
    const auto width = static_cast<std::size_t>(n_embd);
    return {.data = data.subspan(first * width, n * width), .n_embd = n_embd};
  }
};

/// Names a step that was submitted.
enum class Step : std::uint64_t {};

/// What a step gives. Valid until the next wait().
struct Result {
  Logits logits;
  HiddenStates hidden_states;
  /// Of Batch::sample_rows; -1: none was possible, and what stands on it is garbage.
  std::span<const kv::Token> tokens;
};

/// A step failed: the batch's new keys and values, and the states it was to write, are undefined; everything older is
/// intact, the executor lives on.
class StepError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A step failed because a device has too little memory for it: with less work beside it, or later, it may run.
class OutOfMemory : public StepError {
 public:
  using StepError::StepError;
};

/// What the rest of the server must know of the loaded model and its store.
struct ExecutorInfo {
  std::string model_name;  ///< general.name, or the file's name
  std::string architecture;
  std::string attention;  ///< the backend in use: "tree", "gather", "dense"
  int n_vocab = 0;
  int n_embd = 0;                     ///< values of a hidden state; 0: the executor gives none
  std::int32_t context_length = 0;    ///< tokens the model was trained for
  int block_size = 0;                 ///< tokens
  std::int32_t num_blocks = 0;        ///< blocks in the pool, the null block included
  std::size_t bytes_per_block = 0;    ///< of a page, whichever group's
  std::vector<kv::GroupSpec> groups;  ///< the recurrent one last, if there is one
  std::string model_digest;           ///< hex; metadata, tensor table, a sample of each tensor
  std::string layout;                 ///< KV format, order in a block, block size, groups, rope
  bool moves_blocks = false;          ///< it runs block operations that store and load; else it refuses them
  /// Values of a row that is no token; such rows may see each other both ways. 0: there are none here.
  int embedding_size = 0;
  bool positions = false;  ///< rows may have positions besides their indices

  /// Bytes that a block of groups[group] takes outside of the pool, or a page of a state. They mean nothing to who has
  /// other `groups` or another `layout`.
  std::size_t outside_bytes(int group) const {
    const kv::GroupSpec& g = groups[static_cast<std::size_t>(group)];
    if (g.kind == kv::GroupKind::kRecurrent) return bytes_per_block;
    return g.bytes_per_token * static_cast<std::size_t>(block_size);
  }
};

/// Keys and values that attention loaded since start, and what the steps' rows see of them, each byte once a step.
struct KvTraffic {
  std::uint64_t bytes_read = 0;    ///< copies of the pool's bytes count again when they are read
  std::uint64_t bytes_unique = 0;  ///< 0: the backend doesn't know
};

/// Of a device with memory and time of its own; zeros elsewhere. Seconds are sums since start, by the device's clock.
struct DeviceFigures {
  std::uint64_t memory_bytes = 0;  ///< the device has
  std::uint64_t memory_used = 0;   ///< by all programs; a second old at most
  double forward_seconds = 0;      ///< from a step's first kernel to its last before sampling
  double sampling_seconds = 0;     ///< kernels that draw tokens
  /// Without a kernel, between a step's parts and before it, of steps that were submitted before the last one was
  /// waited for.
  double gap_seconds = 0;
  double ahead_seconds = 0;  ///< all three, of those steps
};

/// Threads that compute steps on a CPU; zeros elsewhere.
struct ThreadFigures {
  int most = 0;  ///< there are
  int free = 0;  ///< a step may have by now: fewer while other programs hold processors
  int used = 0;  ///< the last step had: fewer where it was small
};

/// Owns the weights and the KV store. Not thread safe: one thread calls it.
///
/// Steps run in the order in which they are submitted, each after all of the one before it. A step is submitted, its
/// samples are told how to be drawn, and it is waited for. With depth() 1 the next one may be submitted before that
/// wait:
///   submit(k + 1), wait(k), sample(k + 1), submit(k + 2), ...
/// So a device has work while the host reads step k, and how k + 1 is sampled may depend on it. Two steps ahead it
/// could not.
class Executor {
 public:
  virtual ~Executor() = default;
  /// It never changes.
  virtual const ExecutorInfo& info() const = 0;
  /// Places of Batch::outside will lie in this memory, none of them at its border: a device may copy faster to and from
  /// memory that it knows. Any thread. False: nothing has changed.
  virtual bool know_memory(std::span<std::byte> /*memory*/) { return false; }
  /// REQUIRES: it was known; no step is under way that uses it.
  virtual void forget_memory(std::span<std::byte> /*memory*/) {}

  /// How many steps may be submitted behind one that is not waited for: 0 or 1. Callers may leave it unused. At 0
  /// submit() may compute the step, and gives logits only.
  virtual int depth() const { return 0; }

  /// Begins a step: runs the block operations in order, writes the rows' keys and values into their slots, attends. The
  /// batch and what it views are needed until this returns. Throws StepError, then nothing was begun. REQUIRES: batch
  /// is valid as described there; no two rows are written to the same slot.
  virtual Step submit(const Batch& batch) = 0;

  /// How the tokens behind the step's sample_rows are drawn: [sample_rows], needed until this returns. Once a step that
  /// has some, before the next one is submitted. Throws nothing: wait() tells.
  virtual void sample(Step /*step*/, std::span<const sampling::SamplerSpec> /*specs*/) {}

  /// Waits until a step is done, the oldest that wasn't waited for. Throws StepError; then the step that was submitted
  /// behind it has failed, too, and is not waited for.
  virtual Result wait(Step step) = 0;

  /// A step on its own. REQUIRES: no other is waited for.
  Result forward(const Batch& batch) { return wait(submit(batch)); }

  /// Lets the weights' memory go. What is in the pool stays, and batches without rows run. False: it can't, and nothing
  /// has changed. Throws StepError: the device failed. REQUIRES: no step is under way.
  virtual bool sleep() { return false; }
  /// Reads the weights again until then, at least some of them: all take about as long as loading did, and a GPU's come
  /// at once. True: they are there. Between calls batches without rows run. Throws StepError; then it sleeps on.
  /// REQUIRES: it sleeps.
  virtual bool wake(std::chrono::steady_clock::time_point /*until*/) { return true; }

  // Figures. They throw nothing.
  virtual KvTraffic kv_traffic() const { return {}; }
  virtual DeviceFigures device_figures() const { return {}; }
  virtual ThreadFigures thread_figures() const { return {}; }

  /// Of the seconds in submit() and wait() since start, those that went into preparing the steps: checking batches,
  /// planning attention, finding or making graphs and filling them. The model's own work is the rest.
  virtual double planning_seconds() const { return 0; }
};

/// An executor that computes a step where it is submitted.
class BlockingExecutor : public Executor {
 public:
  Step submit(const Batch& batch) final {
    result_ = run(batch);
    return Step{++last_};
  }
  Result wait(Step /*step*/) final { return result_; }

 protected:
  /// Throws StepError. What it gives is valid until the next run().
  virtual Result run(const Batch& batch) = 0;

 private:
  Result result_;
  std::uint64_t last_ = 0;
};

}  // namespace coppice::executor
