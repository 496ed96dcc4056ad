#include "support/fake_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

namespace coppice::testing {

namespace {

/// Calls visit(row, its sequence, its position) for each row, in order.
template <class Visit>
void for_each_row(const executor::Batch& batch, Visit&& visit) {
  int row = 0;
  for (const auto& sequence : batch.sequences) {
    for (int i = 0; i < sequence.n_rows; ++i, ++row) visit(row, sequence, sequence.first_position + i);
  }
}

}  // namespace

void write_hash(std::uint64_t hash, std::span<float> row) {
  std::ranges::fill(row, 0.0f);
  for (std::size_t i = 0; i < 4; ++i) row[i] = static_cast<float>((hash >> (16 * i)) & 0xffff);
}

std::uint64_t read_hash(std::span<const float> row) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < 4; ++i) hash |= static_cast<std::uint64_t>(row[i]) << (16 * i);
  return hash;
}

FakeExecutor::FakeExecutor(const kv::CacheConfig& config, std::int32_t context_length) {
  info_.model_name = "fake";
  info_.architecture = "fake";
  info_.attention = "fake";
  info_.n_vocab = kFakeVocab;
  info_.n_embd = kFakeEmbd;
  info_.context_length = context_length;
  info_.block_size = config.block_size;
  info_.num_blocks = config.num_blocks;
  info_.bytes_per_block = config.bytes_per_block;
  info_.groups = config.groups;
  store_.resize(static_cast<std::size_t>(config.num_blocks) * static_cast<std::size_t>(config.block_size));
}

executor::Logits FakeExecutor::forward(const executor::Batch& batch) {
  if (hook_) hook_();
  const int step = static_cast<int>(steps_.size());
  auto& log = steps_.emplace_back();
  log.n_rows = batch.n_rows();
  log.n_copies = batch.copies.size();
  log.n_logits = batch.logit_rows.size();
  log.n_hidden = batch.hidden_rows.size();
  int end = 0;
  for (const auto& sequence : batch.sequences) {
    end += sequence.n_rows;
    log.sequences.push_back({.first_position = sequence.first_position,
                             .n_rows = sequence.n_rows,
                             .logits = std::ranges::binary_search(batch.logit_rows, end - 1)});
  }
  check(batch);
  if (failures_.contains(step)) {
    log.failed = true;
    poison(batch);
    throw executor::StepError("the fake executor was told to fail");
  }
  if (mistake_ != Mistake::kSkipCopies) {
    for (const auto& op : batch.copies) copy(op);
  }
  write(batch);

  // A layer is done for all rows before the next one starts, as in a model.
  for_each_row(batch, [&](int, const executor::BatchSequence& sequence, std::int32_t position) {
    const std::uint64_t deep = attend(sequence, position, false);
    for (const auto& table : sequence.tables) key(table.slot(position)).deep = deep;
  });
  logits_.resize(batch.logit_rows.size() * kFakeVocab);
  executor::Logits logits{.data = logits_, .n_vocab = kFakeVocab};
  hidden_states_.resize(batch.hidden_rows.size() * kFakeEmbd);
  std::size_t next = 0, next_hidden = 0;
  for_each_row(batch, [&](int row, const executor::BatchSequence& sequence, std::int32_t position) {
    const bool wanted = next < batch.logit_rows.size() && batch.logit_rows[next] == row;
    const bool hidden = next_hidden < batch.hidden_rows.size() && batch.hidden_rows[next_hidden] == row;
    if (!wanted && !hidden) return;
    const std::uint64_t hash = attend(sequence, position, true);
    if (wanted) write_hash(hash, logits.row(next++));
    if (hidden) write_hash(mix(hash, 1), std::span(hidden_states_).subspan(kFakeEmbd * next_hidden++, kFakeEmbd));
  });
  return logits;
}

void FakeExecutor::check(const executor::Batch& batch) {
  int rows = 0;
  for (const auto& sequence : batch.sequences) {
    if (sequence.n_rows < 1) fault("a sequence without rows");
    if (sequence.tables.size() != info_.groups.size()) fault("a sequence has not one table for each group");
    rows += sequence.n_rows;
  }
  if (rows != batch.n_rows()) fault("sequences do not cover the batch");
  if (!std::ranges::is_sorted(batch.logit_rows)) fault("logit rows are not ascending");
  if (!std::ranges::is_sorted(batch.hidden_rows)) fault("hidden rows are not ascending");
  std::unordered_set<kv::Slot> written;
  for_each_row(batch, [&](int, const executor::BatchSequence& sequence, std::int32_t position) {
    for (const auto& table : sequence.tables) {
      const kv::Slot slot = table.slot(position);
      if (slot < info_.block_size) fault("the null block is written");
      if (!written.insert(slot).second) fault(fmt::format("slot {} is written twice in one step", slot));
    }
  });
}

void FakeExecutor::copy(const kv::CopyOp& op) {
  if (op.dst == kv::kNullBlock || op.src == kv::kNullBlock) fault("the null block is copied");
  if (key(kv::Slot{op.src} * info_.block_size).group != op.group) fault("a copy names another group than its block's");
  const int n_slots = op.n_slots - (mistake_ == Mistake::kCopyOneSlotLess ? 1 : 0);
  for (int i = 0; i < info_.block_size; ++i) {
    const kv::Slot to = kv::Slot{op.dst} * info_.block_size + i;
    key(to) = i < n_slots ? key(kv::Slot{op.src} * info_.block_size + i) : Key{};
  }
}

void FakeExecutor::write(const executor::Batch& batch) {
  for_each_row(batch, [&](int row, const executor::BatchSequence& sequence, std::int32_t position) {
    for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
      kv::Slot slot = sequence.tables[g].slot(position);
      if (slot % info_.block_size == 0) {  // a fresh block: what it held before must never be read again
        for (int i = 0; i < info_.block_size; ++i) key(slot + i) = Key{};
      }
      if (mistake_ == Mistake::kWrongSlot && position % 7 == 6) slot ^= 1;
      key(slot) = Key{.token = batch.tokens[static_cast<std::size_t>(row)],
                      .position = position,
                      .group = static_cast<std::int32_t>(g),
                      .deep = 0};
    }
  });
}

void FakeExecutor::poison(const executor::Batch& batch) {
  for (const auto& op : batch.copies) {
    for (int i = 0; i < info_.block_size; ++i) key(kv::Slot{op.dst} * info_.block_size + i) = Key{};
  }
  for_each_row(batch, [&](int, const executor::BatchSequence& sequence, std::int32_t position) {
    for (const auto& table : sequence.tables) key(table.slot(position)) = Key{};
  });
}

std::uint64_t FakeExecutor::attend(const executor::BatchSequence& sequence, std::int32_t position, bool deep) {
  std::uint64_t all = 0;
  for (std::size_t g = 0; g < info_.groups.size(); ++g) {
    const auto& group = info_.groups[g];
    const bool sliding = group.kind == kv::GroupKind::kSliding;
    const std::int32_t first = sliding ? std::max(0, position - group.window + 1) : 0;
    std::uint64_t seen = g;
    for (std::int32_t p = first; p <= position; ++p) {
      const Key& k = key(sequence.tables[g].slot(p));
      if (k.position != p || k.group != static_cast<std::int32_t>(g)) {
        fault(
            fmt::format("step {}: position {} sees at position {} of group {} the key of token {}, position {}, "
                        "group {} (block {})",
                        steps_.size() - 1, position, p, g, k.token, k.position, k.group,
                        sequence.tables[g].slot(p) / info_.block_size));
      }
      const auto token = static_cast<std::uint32_t>(k.token);
      const auto place = static_cast<std::uint32_t>(k.position);
      seen = mix(seen, deep ? k.deep : (std::uint64_t{token} << 32 | place));
    }
    all = mix(all, seen);
  }
  return all;
}

void FakeExecutor::fault(std::string what) {
  if (faults_.size() < 20) faults_.push_back(std::move(what));
}

}  // namespace coppice::testing
