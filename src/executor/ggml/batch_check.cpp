#include "executor/ggml/batch_check.h"

#include <fmt/format.h>

#include <unordered_set>

namespace coppice::executor {

namespace {

template <class... Args>
void insist(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) throw StepError(fmt::format(text, std::forward<Args>(args)...));
}

void check_sequence(const Batch& batch, const BatchSequence& s, const BatchLimits& limits) {
  const std::int64_t len = std::int64_t{s.first_position} + s.n_rows;
  insist(s.first_position >= 0 && len <= limits.context, "positions up to {} exceed the context of {}", len - 1,
         limits.context);
  insist(static_cast<int>(s.tables.size()) == limits.n_groups, "a sequence has {} tables for {} groups",
         s.tables.size(), limits.n_groups);
  for (int r = 0; r < s.n_rows; ++r) {
    const std::int32_t p = batch.positions[static_cast<std::size_t>(s.first_row + r)];
    insist(p == s.first_position + r, "row {} has position {} instead of {}", s.first_row + r, p, s.first_position + r);
  }
  for (std::size_t g = 0; g < s.tables.size(); ++g) {
    const kv::TableView& table = s.tables[g];
    insist(table.block_size == limits.block_size, "a table has blocks of {} tokens, the pool of {}", table.block_size,
           limits.block_size);
    insist(static_cast<std::int64_t>(table.blocks.size()) * limits.block_size >= len,
           "a table of {} blocks does not cover {} tokens", table.blocks.size(), len);
    for (const kv::BlockId id : table.blocks) {
      insist(id >= 0 && id < limits.num_blocks, "block {} is outside the pool of {}", id, limits.num_blocks);
    }
    for (int r = 0; r < s.n_rows; ++r) {
      const kv::Slot slot = batch.slots[g][static_cast<std::size_t>(s.first_row + r)];
      insist(slot == table.slot(std::int64_t{s.first_position} + r),
             "row {} is written to slot {}, not where its table says", s.first_row + r, slot);
      insist(slot >= limits.block_size, "row {} would be written to the null block", s.first_row + r);
    }
  }
}

void check_copies(const Batch& batch, const BatchLimits& limits) {
  for (const kv::CopyOp& op : batch.copies) {
    insist(op.src >= 0 && op.src < limits.num_blocks && op.dst > kv::kNullBlock && op.dst < limits.num_blocks &&
               op.n_slots >= 0 && op.n_slots <= limits.block_size,
           "a copy of {} slots from block {} to block {} is not possible", op.n_slots, op.src, op.dst);
  }
}

}  // namespace

void check_batch(const Batch& batch, const BatchLimits& limits) {
  const int n = batch.n_rows();
  insist(n >= 1 && n <= limits.max_rows, "a step of {} rows; 1 to {} are possible", n, limits.max_rows);
  insist(static_cast<int>(batch.sequences.size()) <= limits.max_sequences, "a step of {} sequences; {} are possible",
         batch.sequences.size(), limits.max_sequences);
  insist(static_cast<int>(batch.positions.size()) == n, "{} positions for {} rows", batch.positions.size(), n);
  insist(static_cast<int>(batch.slots.size()) == limits.n_groups, "slots of {} groups instead of {}",
         batch.slots.size(), limits.n_groups);
  for (const auto& slots : batch.slots) {
    insist(static_cast<int>(slots.size()) == n, "{} slots for {} rows", slots.size(), n);
    std::unordered_set<kv::Slot> seen;
    for (const kv::Slot slot : slots) insist(seen.insert(slot).second, "two rows would be written to slot {}", slot);
  }
  for (const kv::Token t : batch.tokens) {
    insist(t >= 0 && t < limits.n_vocab, "token {} is outside the vocabulary of {}", t, limits.n_vocab);
  }
  int row = 0;
  for (const BatchSequence& s : batch.sequences) {
    insist(s.n_rows >= 1 && s.first_row == row && row + s.n_rows <= n,
           "sequences do not cover the rows in order at row {}", row);
    check_sequence(batch, s, limits);
    row += s.n_rows;
  }
  insist(row == n, "sequences cover {} of {} rows", row, n);
  std::int32_t previous = -1;
  for (const std::int32_t r : batch.logit_rows) {
    insist(r > previous && r < n, "logits are wanted of row {} of {}, behind row {}", r, n, previous);
    previous = r;
  }
  check_copies(batch, limits);
}

}  // namespace coppice::executor
