#include "support/fake_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "support/fake_generation.h"

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

using SourceKind = executor::RowSource::Kind;

/// A row's token; of an embedding a number that no token is.
kv::Token symbol_of(const executor::Batch& batch, int row) {
  const executor::RowSource source = batch.rows[static_cast<std::size_t>(row)];
  if (source.kind != SourceKind::kEmbedding) return source.number;
  if (std::cmp_greater_equal(source.number, batch.embeddings.size())) return -2;  // check() tells
  return embedding_symbol(batch.embeddings[static_cast<std::size_t>(source.number)]);
}

std::uint64_t row_rotation(const executor::Batch& batch, int row, std::int32_t index) {
  if (std::cmp_greater_equal(row, batch.positions.size())) return 0;  // none, or too few, which is a fault of the batch
  return rotation_of(batch.positions[static_cast<std::size_t>(row)], index);
}

}  // namespace

kv::Token embedding_symbol(std::span<const float> embedding) {
  std::uint64_t hash = 5;
  for (const float value : embedding) hash = mix(hash, std::bit_cast<std::uint32_t>(value));
  return -2 - static_cast<kv::Token>(hash & 0x3fffffff);
}

std::uint64_t rotation_of(const executor::RopePosition& p, std::int32_t index) {
  if (p == executor::RopePosition{index, index, index}) return 0;
  const auto at = [](std::int32_t x) { return static_cast<std::uint64_t>(x); };
  return mix(mix(mix(1, at(p.time)), at(p.height)), at(p.width)) | 1;
}

void write_hash(std::uint64_t hash, std::span<float> row) {
  std::ranges::fill(row, 0.0f);
  for (std::size_t i = 0; i < 4; ++i) row[i] = static_cast<float>((hash >> (16 * i)) & 0xffff);
}

std::uint64_t read_hash(std::span<const float> row) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < 4; ++i) hash |= static_cast<std::uint64_t>(row[i]) << (16 * i);
  return hash;
}

FakeExecutor::FakeExecutor(const kv::CacheConfig& config, std::int32_t context_length, int depth, std::uint64_t seed)
    : depth_(depth), random_(seed) {
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
  info_.moves_blocks = true;
  for (kv::GroupSpec& group : info_.groups) group.bytes_per_token = sizeof(Key);
  info_.bytes_per_block = std::max(info_.bytes_per_block, sizeof(Key) * static_cast<std::size_t>(config.block_size));
  info_.embedding_size = kFakeEmbd;
  info_.positions = true;
  state_pages_.resize(static_cast<std::size_t>(config.num_blocks));
  store_.resize(static_cast<std::size_t>(config.num_blocks) * static_cast<std::size_t>(config.block_size));
}

void FakeExecutor::log(const executor::Batch& batch) {
  auto& log = steps_.emplace_back();
  log.n_rows = batch.n_rows();
  log.n_copies = batch.block_ops.size();
  log.n_logits = batch.logit_rows.size();
  log.n_hidden = batch.hidden_rows.size();
  log.n_drawn =
      static_cast<std::size_t>(std::ranges::count(batch.rows, SourceKind::kDrawn, &executor::RowSource::kind));
  int end = 0;
  for (const auto& sequence : batch.sequences) {
    end += sequence.n_rows;
    log.sequences.push_back({.first_position = sequence.first_position,
                             .n_rows = sequence.n_rows,
                             .logits = std::ranges::binary_search(batch.logit_rows, end - 1)});
  }
}

executor::Step FakeExecutor::submit(const executor::Batch& batch) {
  if (hook_) hook_();
  log(batch);
  check(batch);
  if (asleep_ && !batch.rows.empty()) fault("rows are computed while the weights are away");
  const std::size_t number = steps_.size() - 1;
  if (depth_ == 0) {
    Flight flight;
    flight.number = number;
    compute(batch, flight);
    if (flight.failed) throw executor::StepError("the fake executor was told to fail");
    flight.ran = true;
    flights_.push_back(std::move(flight));
  } else {
    Flight& flight = flights_.emplace_back();
    flight.number = number;
    if (std::cmp_greater(flights_.size(), depth_ + 1)) fault("more steps are submitted than the depth allows");
    check_drawn(batch);
    keep(batch, flight);
    if (coin()) run_up_to(flight);
  }
  return executor::Step{number};
}

void FakeExecutor::keep(const executor::Batch& batch, Flight& flight) {
  flight.batch = batch;
  std::size_t n = 0;
  for (const auto& sequence : batch.sequences) n += sequence.tables.size() + 2;
  flight.blocks.reserve(n);
  const auto own = [&](std::span<const kv::BlockId> blocks) {
    return std::span<const kv::BlockId>(flight.blocks.emplace_back(blocks.begin(), blocks.end()));
  };
  for (auto& sequence : flight.batch.sequences) {
    for (auto& table : sequence.tables) table.blocks = own(table.blocks);
    sequence.state_in = own(sequence.state_in);
    sequence.state_out = own(sequence.state_out);
  }
  for (auto& embedding : flight.batch.embeddings) {
    const auto& values = flight.embeddings.emplace_back(embedding.begin(), embedding.end());
    embedding = values;
  }
}

void FakeExecutor::sample(executor::Step step, std::span<const sampling::SamplerSpec> specs) {
  Flight& flight = flights_.back();
  if (executor::Step{flight.number} != step || flight.sampled) fault("sample() of another step than the last");
  if (specs.size() != flight.batch.sample_rows.size()) fault("not one spec for each row that is sampled");
  flight.sampled = true;
  flight.specs.assign(specs.begin(), specs.end());
  if (coin()) run_up_to(flight);
}

executor::Result FakeExecutor::wait(executor::Step step) {
  if (flights_.empty() || executor::Step{flights_.front().number} != step)
    fault("wait() for another step than the oldest");
  Flight& flight = flights_.front();
  if (!flight.sampled && !flight.batch.sample_rows.empty()) fault("wait() for a step whose rows are not sampled");
  run_up_to(flight);
  if (flight.failed) {
    run_up_to(flights_.back());  // into garbage
    flights_.clear();
    throw executor::StepError("the fake executor was told to fail");
  }
  last_ = std::move(flight);
  flights_.pop_front();
  return {.logits = {.data = last_.logits, .n_vocab = kFakeVocab},
          .hidden_states = {.data = last_.hidden_states, .n_embd = kFakeEmbd},
          .tokens = last_.tokens};
}

void FakeExecutor::run_up_to(Flight& last) {
  for (Flight& flight : flights_) {
    run(flight);
    if (&flight == &last) break;
  }
}

void FakeExecutor::run(Flight& flight) {
  const Flight& before = &flight == &flights_.front() ? last_ : flights_.front();
  if (!flight.ran) {
    flight.ran = true;
    flight.failed = &before != &last_ && before.failed;
    for (auto& source : flight.batch.rows) {
      if (flight.failed) break;
      if (source.kind == SourceKind::kDrawn) source = before.tokens.at(static_cast<std::size_t>(source.number));
    }
    compute(flight.batch, flight);
  }
  if (!flight.sampled || !flight.tokens.empty() || flight.failed) return;
  for (std::size_t i = 0; i < flight.specs.size(); ++i) {
    const sampling::SamplerSpec& spec = flight.specs[i];
    flight.tokens.push_back(fake_token(flight.hashes[i], spec.seed, static_cast<int>(spec.counter)));
  }
}

void FakeExecutor::compute(const executor::Batch& batch, Flight& flight) {
  if (flight.failed || failures_.contains(static_cast<int>(flight.number))) {
    steps_[flight.number].failed = flight.failed = true;
    poison(batch);
    return;
  }
  if (mistake_ != Mistake::kSkipCopies) {
    for (const auto& op : batch.block_ops) run_op(op, batch);
  }
  write(batch);
  run_states(batch);

  // A layer is done for all rows before the next one starts, as in a model.
  for_each_row(batch, [&](int row, const executor::BatchSequence& sequence, std::int32_t position) {
    const std::uint64_t deep = attend(sequence, row, position, false);
    for (const auto& table : sequence.tables) key(table.slot(position)).deep = deep;
  });
  flight.logits.resize(batch.logit_rows.size() * kFakeVocab);
  executor::Logits logits{.data = flight.logits, .n_vocab = kFakeVocab};
  flight.hidden_states.resize(batch.hidden_rows.size() * kFakeEmbd);
  std::size_t next = 0, next_hidden = 0, next_sample = 0;
  const auto is_next = [](const std::vector<std::int32_t>& rows, std::size_t i, int row) {
    return i < rows.size() && rows[i] == row;
  };
  for_each_row(batch, [&](int row, const executor::BatchSequence& sequence, std::int32_t position) {
    const bool wanted = is_next(batch.logit_rows, next, row);
    const bool hidden = is_next(batch.hidden_rows, next_hidden, row);
    const bool sampled = is_next(batch.sample_rows, next_sample, row);
    if (!wanted && !hidden && !sampled) return;
    const std::uint64_t hash = attend(sequence, row, position, true);
    if (wanted) write_hash(hash, logits.row(next++));
    if (hidden) write_hash(mix(hash, 1), std::span(flight.hidden_states).subspan(kFakeEmbd * next_hidden++, kFakeEmbd));
    if (sampled) {
      ++next_sample;
      flight.hashes.push_back(hash);
    }
  });
}

void FakeExecutor::check_drawn(const executor::Batch& batch) {
  if (!std::ranges::is_sorted(batch.sample_rows)) fault("sampled rows are not ascending");
  const bool waited = flights_.size() < 2;
  const Flight& before = waited ? last_ : flights_[flights_.size() - 2];
  if (!waited && !before.sampled && !before.batch.sample_rows.empty())
    fault("a step is submitted before the last is sampled");
  for (const auto& source : batch.rows) {
    if (source.kind != SourceKind::kDrawn) continue;
    if (before.number + 2 != steps_.size()) fault("a row's token is of a step that is not the last");
    if (std::cmp_greater_equal(source.number, before.batch.sample_rows.size())) fault("a row's token is of no sample");
  }
}

void FakeExecutor::check(const executor::Batch& batch) {
  int rows = 0;
  for (const auto& sequence : batch.sequences) {
    if (sequence.n_rows < 1) fault("a sequence without rows");
    if (sequence.tables.size() != kv::n_table_groups(info_.groups))
      fault("a sequence has not one table for each group");
    rows += sequence.n_rows;
    for (std::int32_t end = sequence.first_position; const kv::BothWays& range : sequence.both_ways) {
      if (range.begin < end || range.end <= range.begin || range.end > sequence.first_position + sequence.n_rows)
        fault("rows that see each other are not in order, or not there");
      end = range.end;
    }
  }
  if (rows != batch.n_rows()) fault("sequences do not cover the batch");
  if (!batch.positions.empty() && std::cmp_not_equal(batch.positions.size(), rows))
    fault("not one position for each row");
  for (const auto& source : batch.rows) {
    if (source.kind == SourceKind::kDrawn && depth_ == 0) fault("a row is drawn, and nothing is drawn here");
    if (source.kind == SourceKind::kEmbedding &&
        (std::cmp_greater_equal(source.number, batch.embeddings.size()) ||
         batch.embeddings[static_cast<std::size_t>(source.number)].size() != kFakeEmbd))
      fault("a row without its embedding");
  }
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

// Nobody reads or writes what another writes.
void FakeExecutor::check_states(const executor::Batch& batch) {
  const auto n_pages = static_cast<std::size_t>(info_.groups.back().state_pages);
  std::unordered_set<kv::BlockId> written;
  for (const auto& sequence : batch.sequences) {
    if (sequence.state_out.size() != n_pages) fault("a state to be written has another number of pages");
    if (sequence.state_in.size() != (sequence.first_position > 0 ? n_pages : 0))
      fault("a state to be read has another number of pages");
    for (const auto page : sequence.state_out) {
      if (page <= kv::kNullBlock || !written.insert(page).second)
        fault(fmt::format("two states are written to page {}", page));
    }
  }
  for (const auto& sequence : batch.sequences) {
    if (std::ranges::equal(sequence.state_in, sequence.state_out)) continue;
    for (const auto page : sequence.state_in)
      if (written.contains(page)) fault(fmt::format("page {} is read by one and written by another", page));
  }
}

void FakeExecutor::run_states(const executor::Batch& batch) {
  if (!has_states()) return;
  check_states(batch);
  row_states_.resize(batch.rows.size());
  std::uint64_t state = 0;
  for_each_row(batch, [&](int row, const executor::BatchSequence& sequence, std::int32_t position) {
    if (position == sequence.first_position) state = read_state(sequence);
    const auto at = static_cast<std::size_t>(row);
    row_states_[at] = state = mix(state, static_cast<std::uint32_t>(symbol_of(batch, row)));
  });
  if (mistake_ == Mistake::kSkipState) return;
  std::size_t end = 0;
  for (const auto& sequence : batch.sequences) {
    end += static_cast<std::size_t>(sequence.n_rows);
    write_state(sequence.state_out, sequence.first_position + sequence.n_rows, row_states_[end - 1]);
  }
}

std::uint64_t FakeExecutor::read_state(const executor::BatchSequence& sequence) {
  if (sequence.state_in.empty()) return kStateRoot;
  const auto page = [&](std::size_t i) { return state_pages_.at(static_cast<std::size_t>(sequence.state_in[i])); };
  const std::uint64_t hash = page(0).hash;
  for (std::size_t i = 0; i < sequence.state_in.size(); ++i) {
    const StatePage wanted{static_cast<std::int32_t>(i), sequence.first_position, hash};
    if (page(i) == wanted) continue;
    fault(fmt::format("step {}: page {} of the state at {} (block {}) holds page {} of one at {}", steps_.size() - 1, i,
                      sequence.first_position, sequence.state_in[i], page(i).index, page(i).length));
  }
  return hash;
}

void FakeExecutor::write_state(std::span<const kv::BlockId> pages, std::int32_t length, std::uint64_t hash) {
  for (std::size_t i = 0; i < pages.size(); ++i) {
    state_pages_.at(static_cast<std::size_t>(pages[i])) = {static_cast<std::int32_t>(i), length, hash};
    for (int slot = 0; slot < info_.block_size; ++slot) key(kv::Slot{pages[i]} * info_.block_size + slot) = Key{};
  }
}

void FakeExecutor::run_op(const kv::BlockOp& op, const executor::Batch& batch) {
  using enum kv::BlockOp::Kind;
  if (op.kind == kCopy) return copy(op);
  const kv::BlockId block = op.kind == kStore ? op.src : op.dst;
  if (block == kv::kNullBlock) return fault("an operation on the null block");
  if (op.n_slots != info_.block_size) fault("a part of a block is stored or loaded");
  if (op.outside >= batch.outside.size()) return fault("a block's place outside of the pool is not there");
  const std::span<std::byte> there = batch.outside[op.outside];
  if (there.size() < info_.outside_bytes(op.group)) return fault("a block's place outside of the pool is too small");
  const auto keys = std::as_writable_bytes(
      std::span(&key(kv::Slot{block} * info_.block_size), static_cast<std::size_t>(info_.block_size)));
  if (info_.groups[static_cast<std::size_t>(op.group)].kind != kv::GroupKind::kRecurrent) {
    const bool stores = op.kind == kStore;
    if (stores && key(kv::Slot{block} * info_.block_size).group != op.group)
      fault("a block is stored as another group's");
    stores ? std::ranges::copy(keys, there.begin()) : std::ranges::copy(there.first(keys.size()), keys.begin());
    if (!stores) state_pages_.at(static_cast<std::size_t>(block)) = {};
    return;
  }
  StatePage& page = state_pages_.at(static_cast<std::size_t>(block));
  if (op.kind == kStore) {
    if (page.index < 0) fault(fmt::format("block {} is stored as a state's page", block));
    std::memcpy(there.data(), &page, sizeof page);
  } else {
    std::memcpy(&page, there.data(), sizeof page);
    std::ranges::fill(std::span(&key(kv::Slot{block} * info_.block_size), static_cast<std::size_t>(info_.block_size)),
                      Key{});
  }
}

void FakeExecutor::copy(const kv::BlockOp& op) {
  const auto bs = static_cast<std::size_t>(info_.block_size);
  const auto slots_of = [&](kv::BlockId block) { return std::span(&key(kv::Slot{block} * info_.block_size), bs); };
  if (op.src == kv::kNullBlock || op.dst == kv::kNullBlock) return fault("an operation on the null block");
  const std::span<const Key> from = slots_of(op.src);
  if (from[0].group != op.group) fault("a block operation names another group than its block's");
  const auto n = static_cast<std::size_t>(op.n_slots - (mistake_ == Mistake::kCopyOneSlotLess ? 1 : 0));
  std::vector<Key> keys(bs);
  std::ranges::copy(from.first(n), keys.begin());
  std::ranges::copy(keys, slots_of(op.dst).begin());
}

void FakeExecutor::write(const executor::Batch& batch) {
  for_each_row(batch, [&](int row, const executor::BatchSequence& sequence, std::int32_t position) {
    for (std::size_t g = 0; g < sequence.tables.size(); ++g) {
      kv::Slot slot = sequence.tables[g].slot(position);
      state_pages_[static_cast<std::size_t>(slot / info_.block_size)] = {};
      if (slot % info_.block_size == 0) {  // a fresh block: what it held before must never be read again
        for (int i = 0; i < info_.block_size; ++i) key(slot + i) = Key{};
      }
      if (mistake_ == Mistake::kWrongSlot && position % 7 == 6) slot ^= 1;
      key(slot) = Key{.token = symbol_of(batch, row),
                      .position = position,
                      .group = static_cast<std::int32_t>(g),
                      .rotation = row_rotation(batch, row, position),
                      .deep = 0};
    }
  });
}

void FakeExecutor::poison(const executor::Batch& batch) {
  for (const auto& op : batch.block_ops) {
    if (op.kind == kv::BlockOp::Kind::kStore) continue;
    for (int i = 0; i < info_.block_size; ++i) key(kv::Slot{op.dst} * info_.block_size + i) = Key{};
  }
  for_each_row(batch, [&](int, const executor::BatchSequence& sequence, std::int32_t position) {
    for (const auto& table : sequence.tables) key(table.slot(position)) = Key{};
  });
  for (const auto& sequence : batch.sequences) write_state(sequence.state_out, -99, 99);
}

std::uint64_t FakeExecutor::attend(const executor::BatchSequence& sequence, int row, std::int32_t position, bool deep) {
  std::uint64_t all = 0;
  for (std::size_t g = 0; g < info_.groups.size(); ++g) {
    const auto& group = info_.groups[g];
    if (group.kind == kv::GroupKind::kRecurrent) {
      all = mix(all, row_states_[static_cast<std::size_t>(row)]);
      continue;
    }
    const bool sliding = group.kind == kv::GroupKind::kSliding;
    const std::int32_t first = sliding ? std::max(0, position - group.window + 1) : 0;
    std::uint64_t seen = g;
    for (std::int32_t p = first; p < kv::end_visible(position, sequence.both_ways); ++p) {
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
      if (!deep && k.rotation != 0) seen = mix(seen, k.rotation);
    }
    all = mix(all, seen);
  }
  return all;
}

void FakeExecutor::fault(std::string what) {
  if (faults_.size() < 20) faults_.push_back(std::move(what));
}

}  // namespace coppice::testing
