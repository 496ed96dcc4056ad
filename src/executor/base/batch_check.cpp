#include "executor/base/batch_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::executor {

namespace {

template <class... Args>
void insist(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) throw StepError(fmt::format(text, std::forward<Args>(args)...));
}

/// Most of what is to be checked in a step that decodes. Without a branch the compiler compares several at once.
bool are_inside(std::span<const kv::BlockId> blocks, const BatchLimits& limits) {
  bool all = true;
  for (const kv::BlockId id : blocks) all &= (id >= 0) & (id < limits.num_blocks);
  return all;
}

void check_sequence(const BatchSequence& s, const BatchLimits& limits) {
  const std::int64_t len = std::int64_t{s.first_position} + s.n_rows;
  insist(s.first_position >= 0 && len <= limits.context, "positions up to {} exceed the context of {}", len - 1,
         limits.context);
  insist(static_cast<int>(s.tables.size()) == limits.n_groups, "a sequence has {} tables for {} groups",
         s.tables.size(), limits.n_groups);
  insist(limits.both_ways || s.both_ways.empty(), "rows see only what is before them here");
  std::int64_t next = s.first_position;
  for (const kv::BothWays& rows : s.both_ways) {
    insist(rows.begin >= next && rows.begin < rows.end && rows.end <= len,
           "rows {} to {} would see each other both ways in a step of {} to {}", rows.begin, rows.end - 1, next,
           len - 1);
    next = rows.end;
  }
  for (const kv::TableView& table : s.tables) {
    insist(table.block_size == limits.block_size, "a table has blocks of {} tokens, the pool of {}", table.block_size,
           limits.block_size);
    insist(static_cast<std::int64_t>(table.blocks.size()) * limits.block_size >= len,
           "a table of {} blocks does not cover {} tokens", table.blocks.size(), len);
    if (are_inside(table.blocks, limits)) continue;
    for (const kv::BlockId id : table.blocks)
      insist(id >= 0 && id < limits.num_blocks, "block {} is outside the pool of {}", id, limits.num_blocks);
  }
}

void check_pages(std::span<const kv::BlockId> pages, const BatchLimits& limits) {
  insist(static_cast<int>(pages.size()) == limits.state_pages, "a state has {} pages instead of {}", pages.size(),
         limits.state_pages);
  for (const kv::BlockId id : pages)
    insist(id > kv::kNullBlock && id < limits.num_blocks, "a state's page {} is outside the pool of {}", id,
           limits.num_blocks);
}

/// What is written is written once, and read by nobody but its own sequence, from the same pages in the same order.
void check_states(const Batch& batch, const BatchLimits& limits) {
  std::vector<kv::BlockId> written, read;
  for (const BatchSequence& s : batch.sequences) {
    insist(s.first_position > 0 || s.state_in.empty(), "a state would be read at position 0");
    if (s.first_position > 0) check_pages(s.state_in, limits);
    check_pages(s.state_out, limits);
    written.insert(written.end(), s.state_out.begin(), s.state_out.end());
    if (!std::ranges::equal(s.state_in, s.state_out)) read.insert(read.end(), s.state_in.begin(), s.state_in.end());
  }
  std::ranges::sort(written);
  const auto twice = std::ranges::adjacent_find(written);
  insist(twice == written.end(), "two states would be written to page {}", twice == written.end() ? 0 : *twice);
  for (const kv::BlockId id : read)
    insist(!std::ranges::binary_search(written, id), "page {} would be read as one state and written as another", id);
}

/// REQUIRES: the sequences have been checked.
void check_written_slots(const Batch& batch, std::size_t group, const BatchLimits& limits) {
  std::vector<kv::Slot> slots;
  slots.reserve(batch.rows.size());
  for (const BatchSequence& s : batch.sequences) {
    for (int r = 0; r < s.n_rows; ++r) slots.push_back(s.tables[group].slot(std::int64_t{s.first_position} + r));
  }
  std::ranges::sort(slots);
  insist(slots.front() >= limits.block_size, "a row would be written to the null block");
  const auto twice = std::ranges::adjacent_find(slots);
  insist(twice == slots.end(), "two rows would be written to slot {}", twice == slots.end() ? 0 : *twice);
}

void check_rows(std::span<const std::int32_t> wanted, int n, std::string_view what) {
  std::int32_t previous = -1;
  for (const std::int32_t r : wanted) {
    insist(r > previous && r < n, "{} are wanted of row {} of {}, behind row {}", what, r, n, previous);
    previous = r;
  }
}

void check_source(const Batch& batch, RowSource source, const BatchLimits& limits) {
  switch (source.kind) {
    case RowSource::Kind::kToken:
      return insist(source.number >= 0 && source.number < limits.n_vocab, "token {} is outside the vocabulary of {}",
                    source.number, limits.n_vocab);
    case RowSource::Kind::kDrawn:  // looked at when it is known
      return insist(source.number >= 0 && source.number < limits.n_drawn,
                    "a row has token {} of {} that the last step draws", source.number, limits.n_drawn);
    case RowSource::Kind::kEmbedding:
      break;
  }
  insist(limits.embedding_size > 0, "rows can be tokens here, not embeddings");
  insist(source.number >= 0 && std::cmp_less(source.number, batch.embeddings.size()), "a row has embedding {} of {}",
         source.number, batch.embeddings.size());
  const std::size_t n = batch.embeddings[static_cast<std::size_t>(source.number)].size();
  insist(std::cmp_equal(n, limits.embedding_size), "an embedding has {} values, not {}", n, limits.embedding_size);
}

void check_positions(const Batch& batch, const BatchLimits& limits) {
  if (batch.positions.empty()) return;
  insist(limits.positions, "rows have no positions here but their indices");
  insist(batch.positions.size() == batch.rows.size(), "{} rows have {} positions", batch.n_rows(),
         batch.positions.size());
  for (const RopePosition& p : batch.positions)
    insist(p.time >= 0 && p.height >= 0 && p.width >= 0, "a row has the position ({}, {}, {})", p.time, p.height,
           p.width);
}

void check_move(const Batch& batch, const kv::BlockOp& op, const BatchLimits& limits) {
  const bool stores = op.kind == kv::BlockOp::Kind::kStore;
  const kv::BlockId block = stores ? op.src : op.dst;
  insist(!limits.outside_bytes.empty(), "blocks can be copied here, not stored or loaded");
  insist(block > kv::kNullBlock && block < limits.num_blocks && op.n_slots == limits.block_size && op.group >= 0 &&
             std::cmp_less(op.group, limits.outside_bytes.size()),
         "{} {} slots of block {} of group {} is not possible", stores ? "storing" : "loading", op.n_slots, block,
         op.group);
  insist(op.outside < batch.outside.size(), "an operation has place {} of {} outside of the pool", op.outside,
         batch.outside.size());
  const std::size_t bytes = batch.outside[op.outside].size(),
                    needed = limits.outside_bytes[static_cast<std::size_t>(op.group)];
  insist(bytes >= needed, "a block of group {} takes {} bytes, its place outside of the pool has {}", op.group, needed,
         bytes);
}

void check_block_ops(const Batch& batch, const BatchLimits& limits) {
  using enum kv::BlockOp::Kind;
  for (const kv::BlockOp& op : batch.block_ops) {
    if (op.kind != kCopy) {
      check_move(batch, op, limits);
      continue;
    }
    insist(op.src >= 0 && op.src < limits.num_blocks && op.dst > kv::kNullBlock && op.dst < limits.num_blocks &&
               op.n_slots >= 0 && op.n_slots <= limits.block_size && op.group >= 0 && op.group < limits.n_groups,
           "a copy of {} slots of group {} from block {} to block {} is not possible", op.n_slots, op.group, op.src,
           op.dst);
  }
}

}  // namespace

void check_batch(const Batch& batch, const BatchLimits& limits) {
  const int n = batch.n_rows();
  const bool only_moves = n == 0 && batch.sequences.empty() && !batch.block_ops.empty();
  if (only_moves && !limits.outside_bytes.empty()) return check_block_ops(batch, limits);
  insist(n >= 1 && n <= limits.max_rows, "a step of {} rows; 1 to {} are possible", n, limits.max_rows);
  insist(static_cast<int>(batch.sequences.size()) <= limits.max_sequences, "a step of {} sequences; {} are possible",
         batch.sequences.size(), limits.max_sequences);
  for (const RowSource source : batch.rows) check_source(batch, source, limits);
  check_positions(batch, limits);
  std::int64_t rows = 0;
  for (const BatchSequence& s : batch.sequences) {
    insist(s.n_rows >= 1, "a sequence has {} rows", s.n_rows);
    check_sequence(s, limits);
    rows += s.n_rows;
  }
  insist(rows == n, "sequences have {} rows, the batch {}", rows, n);
  for (int g = 0; g < limits.n_groups; ++g) check_written_slots(batch, static_cast<std::size_t>(g), limits);
  check_states(batch, limits);
  check_rows(batch.logit_rows, n, "logits");
  check_rows(batch.hidden_rows, n, "hidden states");
  check_rows(batch.sample_rows, n, "samples");
  insist(batch.sample_rows.size() <= batch.sequences.size(), "{} samples of {} sequences", batch.sample_rows.size(),
         batch.sequences.size());
  check_block_ops(batch, limits);
}

}  // namespace coppice::executor
