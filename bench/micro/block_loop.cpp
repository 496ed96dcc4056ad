#include "block_loop.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "attend_block.h"

namespace coppice::bench {
namespace {

constexpr std::string_view kNames[] = {"fused", "fused-alone", "gather", "gather-each", "copy"};

/// Blocks `blocks` of sequences [first_row, first_row + n_rows), which all have them: one worker's piece of work.
struct Unit {
  int first_row = 0, n_rows = 0;
  std::span<const kv::BlockId> blocks;
  std::size_t copy_at = 0;  ///< where its copy begins, in blocks
  // States of all key heads, heads_per_kv * n_rows rows each.
  std::vector<float> q, acc;    ///< [n_kv_head, rows, head_dim]
  std::vector<float> max, sum;  ///< [n_kv_head, rows]
};

struct Worker {
  std::vector<Unit> units;
  std::unique_ptr<HugeBuffer> copy;  ///< keys of all its blocks, then their values
  std::size_t copy_blocks = 0;
  std::vector<kv::BlockId> straight;        ///< 0, 1, 2, ...: the table of a copy
  std::vector<float> keys_f32, values_f32;  ///< [block_size, head_dim]
  Traffic traffic;
};

class BlockLoop final : public Backend {
 public:
  BlockLoop(Path path, const BackendOptions& options) : path_(path), options_(options) {}

  std::string_view name() const override { return kNames[static_cast<std::size_t>(path_)]; }
  bool supports(const BenchCase& c) const override;
  bool attends() const override { return path_ != Path::kCopy; }
  int phases() const override { return merging_ ? 2 : 1; }

  void prepare(Step& step, int n_threads) override;
  void run(std::size_t layer, int phase, int worker) override;
  Traffic traffic() const override;

 private:
  bool copies() const { return path_ != Path::kFused && path_ != Path::kFusedAlone; }
  void add_unit(Worker& worker, int first_row, int n_rows, std::span<const kv::BlockId> blocks) const;
  void make_copy_buffer(Worker& worker) const;
  attention::PoolView view_of_copy(const Worker& worker) const;
  void copy_blocks(const attention::PoolView& pool, Worker& worker, const Unit& unit) const;
  void attend(const attention::PoolView& pool, std::span<const kv::BlockId> table, Worker& worker, Unit& unit) const;
  void attend_head(const attention::PoolView& pool, std::span<const kv::BlockId> table, std::size_t i, int head,
                   Worker& worker, Unit& unit) const;
  Ahead next_block(const attention::PoolView& pool, std::span<const kv::BlockId> table, std::size_t i, int head) const;
  void begin(Unit& unit) const;
  void write_out(const Unit& unit) const;
  void merge_and_write_out() const;

  Path path_;
  BackendOptions options_;
  Step* step_ = nullptr;
  bool merging_ = false;
  std::vector<Worker> workers_;
};

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

/// f16 decodes of equal length in whole blocks, of which all are shared or none.
bool BlockLoop::supports(const BenchCase& c) const {
  if (c.format != attention::KvFormat::kF16) return false;
  const auto& sequences = c.what.sequences;
  const std::size_t blocks = sequences.front().table.size();
  const bool alike = std::ranges::all_of(sequences, [&](const test::CaseSequence& s) {
    return s.n_rows == 1 && s.table.size() == blocks && s.length() == static_cast<std::int64_t>(blocks) * kBlockSize;
  });
  if (!alike || c.what.block_size != kBlockSize || c.what.group.kind != kv::GroupKind::kFull) return false;
  if (c.all_share()) return true;
  return path_ != Path::kFusedAlone && size(c.what.unique_blocks()) == sequences.size() * blocks;
}

void BlockLoop::prepare(Step& step, int n_threads) {
  step_ = &step;
  workers_ = std::vector<Worker>(size(n_threads));
  const bool together = step.c.all_share() && path_ != Path::kFusedAlone;
  const auto batch = static_cast<int>(step.c.what.sequences.size());
  const int groups = together ? 1 : batch;
  const int rows = batch / groups;
  merging_ = groups < n_threads;
  for (int group = 0; group < groups; ++group) {
    const std::span<const kv::BlockId> table = step.c.what.sequences[size(group * rows)].table;
    if (!merging_) {
      add_unit(workers_[size(group * n_threads / groups)], group * rows, rows, table);
      continue;
    }
    for (int part = 0; part < n_threads; ++part) {
      const std::size_t from = table.size() * size(part) / size(n_threads);
      const std::size_t to = table.size() * size(part + 1) / size(n_threads);
      add_unit(workers_[size(part)], group * rows, rows, table.subspan(from, to - from));
    }
  }
  for (Worker& worker : workers_) {
    worker.keys_f32.resize(size(kBlockSize * step.c.what.heads.head_dim));
    worker.values_f32.resize(worker.keys_f32.size());
    if (copies()) make_copy_buffer(worker);
  }
}

void BlockLoop::add_unit(Worker& worker, int first_row, int n_rows, std::span<const kv::BlockId> blocks) const {
  const auto& heads = step_->c.what.heads;
  Unit unit{.first_row = first_row, .n_rows = n_rows, .blocks = blocks};
  unit.max.resize(size(heads.n_head * n_rows));
  unit.sum.resize(unit.max.size());
  unit.q.resize(unit.max.size() * size(heads.head_dim));
  unit.acc.resize(unit.q.size());
  worker.units.push_back(std::move(unit));
}

void BlockLoop::make_copy_buffer(Worker& worker) const {
  std::size_t longest = 0, all = 0;
  for (Unit& unit : worker.units) {
    unit.copy_at = path_ == Path::kGatherEach ? 0 : all;
    all += unit.blocks.size();
    longest = std::max(longest, unit.blocks.size());
  }
  worker.copy_blocks = path_ == Path::kGatherEach ? longest : all;
  worker.copy = std::make_unique<HugeBuffer>(worker.copy_blocks * step_->c.block_bytes(), options_.huge_pages);
  for (std::size_t i = 0; i < worker.copy_blocks; ++i) worker.straight.push_back(static_cast<kv::BlockId>(i));
}

attention::PoolView BlockLoop::view_of_copy(const Worker& worker) const {
  attention::PoolView view = step_->layers.front();
  view.keys = worker.copy->data();
  view.values = worker.copy->data() + worker.copy_blocks * view.block_bytes();
  return view;
}

void BlockLoop::run(std::size_t layer, int phase, int worker_index) {
  if (phase == 1) {
    if (worker_index == 0 && path_ != Path::kCopy) merge_and_write_out();
    return;
  }
  Worker& worker = workers_[size(worker_index)];
  const attention::PoolView& pool = step_->layers[layer];
  if (path_ == Path::kGather || path_ == Path::kCopy) {
    for (const Unit& unit : worker.units) copy_blocks(pool, worker, unit);
  }
  if (path_ == Path::kCopy) return;
  for (Unit& unit : worker.units) {
    if (path_ == Path::kGatherEach) copy_blocks(pool, worker, unit);
    if (copies()) {
      const std::span<const kv::BlockId> straight(worker.straight);
      attend(view_of_copy(worker), straight.subspan(unit.copy_at, unit.blocks.size()), worker, unit);
    } else {
      attend(pool, unit.blocks, worker, unit);
    }
    if (!merging_) write_out(unit);
  }
}

void BlockLoop::copy_blocks(const attention::PoolView& pool, Worker& worker, const Unit& unit) const {
  const std::size_t bytes = pool.block_bytes();
  std::byte* keys = worker.copy->data() + unit.copy_at * bytes;
  std::byte* values = keys + worker.copy_blocks * bytes;
  for (const kv::BlockId block : unit.blocks) {
    std::memcpy(keys, pool.keys + size(block) * bytes, bytes);
    std::memcpy(values, pool.values + size(block) * bytes, bytes);
    keys += bytes, values += bytes;
  }
  worker.traffic.read += 2 * bytes * unit.blocks.size();
  worker.traffic.written += 2 * bytes * unit.blocks.size();
}

/// Rows of a key head: the unit's sequences one after another, heads_per_kv rows each.
void BlockLoop::begin(Unit& unit) const {
  const auto& heads = step_->c.what.heads;
  const std::size_t run = size(heads.heads_per_kv() * heads.head_dim);  // one sequence's queries of one key head
  float* to = unit.q.data();
  for (int kv_head = 0; kv_head < heads.n_kv_head; ++kv_head) {
    for (int row = unit.first_row; row < unit.first_row + unit.n_rows; ++row) {
      const float* from = step_->q.data() + (size(row * heads.n_kv_head + kv_head)) * run;
      for (std::size_t i = 0; i < run; ++i) *to++ = from[i] * heads.scale;
    }
  }
  std::fill(unit.max.begin(), unit.max.end(), -std::numeric_limits<float>::infinity());
  std::fill(unit.sum.begin(), unit.sum.end(), 0.0F);
  std::fill(unit.acc.begin(), unit.acc.end(), 0.0F);
}

void BlockLoop::attend(const attention::PoolView& pool, std::span<const kv::BlockId> table, Worker& worker,
                       Unit& unit) const {
  begin(unit);
  for (std::size_t i = 0; i < table.size(); ++i) {
    for (int head = 0; head < step_->c.what.heads.n_kv_head; ++head) attend_head(pool, table, i, head, worker, unit);
  }
  worker.traffic.read += 2 * pool.block_bytes() * table.size();
}

void BlockLoop::attend_head(const attention::PoolView& pool, std::span<const kv::BlockId> table, std::size_t i,
                            int head, Worker& worker, Unit& unit) const {
  const auto& heads = step_->c.what.heads;
  const std::size_t at = size(table[i]) * pool.block_bytes();
  const std::size_t element = size(head) * step_->head_stride();
  const BlockHead<hwy::float16_t> block{.keys = reinterpret_cast<const hwy::float16_t*>(pool.keys + at) + element,
                                        .values = reinterpret_cast<const hwy::float16_t*>(pool.values + at) + element,
                                        .stride = step_->slot_stride(),
                                        .n_keys = kBlockSize,
                                        .dim = heads.head_dim};
  const int rows = heads.heads_per_kv() * unit.n_rows;
  const std::size_t first = size(head * rows);
  const float* q = unit.q.data() + first * size(heads.head_dim);
  const RowStates states{unit.max.data() + first, unit.sum.data() + first,
                         unit.acc.data() + first * size(heads.head_dim)};
  const Ahead ahead = next_block(pool, table, i, head);
  if (rows <= kMaxRows) return attend_block(block, q, rows, ahead, states);

  // More rows than one pass holds: convert once, so that f16 is read once.
  const int lanes = static_cast<int>(hn::Lanes(FloatTag()));
  for (int key = 0; key < block.n_keys; ++key) {
    const std::size_t from = size(key) * block.stride, to = size(key * block.dim);
    for (int d = 0; d < block.dim; d += lanes) {
      hn::StoreU(load(block.keys + from + d), FloatTag(), worker.keys_f32.data() + to + d);
      hn::StoreU(load(block.values + from + d), FloatTag(), worker.values_f32.data() + to + d);
    }
  }
  const BlockHead<float> converted{.keys = worker.keys_f32.data(),
                                   .values = worker.values_f32.data(),
                                   .stride = size(block.dim),
                                   .n_keys = block.n_keys,
                                   .dim = block.dim};
  attend_block(converted, q, rows, ahead, states);
}

/// Each head's pass fetches its share of the next block, whatever lies in it.
Ahead BlockLoop::next_block(const attention::PoolView& pool, std::span<const kv::BlockId> table, std::size_t i,
                            int head) const {
  if (!options_.prefetch || i + 1 == table.size()) return {};
  const std::size_t share = pool.block_bytes() / size(step_->c.what.heads.n_kv_head);
  const std::size_t at = size(table[i + 1]) * pool.block_bytes() + size(head) * share;
  return {.keys = pool.keys + at, .values = pool.values + at, .bytes_per_key = share / kBlockSize};
}

void BlockLoop::write_out(const Unit& unit) const {
  const auto& heads = step_->c.what.heads;
  const float* from = unit.acc.data();
  const float* sum = unit.sum.data();
  for (int kv_head = 0; kv_head < heads.n_kv_head; ++kv_head) {
    for (int row = unit.first_row; row < unit.first_row + unit.n_rows; ++row) {
      for (int head = 0; head < heads.heads_per_kv(); ++head, ++sum) {
        const int row_head = row * heads.n_head + kv_head * heads.heads_per_kv() + head;
        float* to = step_->out.data() + size(row_head * heads.head_dim);
        for (int d = 0; d < heads.head_dim; ++d) to[d] = *from++ / *sum;
      }
    }
  }
}

/// When keys were cut, worker w has part w of every group, in the same order.
void BlockLoop::merge_and_write_out() const {
  const auto dim = size(step_->c.what.heads.head_dim);
  for (std::size_t i = 0; i < workers_.front().units.size(); ++i) {
    Unit merged = workers_.front().units[i];
    for (std::size_t w = 1; w < workers_.size(); ++w) {
      const Unit& part = workers_[w].units[i];
      for (std::size_t row = 0; row < merged.max.size(); ++row) {
        const float max = std::max(merged.max[row], part.max[row]);
        const float keep = std::exp(merged.max[row] - max), add = std::exp(part.max[row] - max);
        merged.max[row] = max;
        merged.sum[row] = merged.sum[row] * keep + part.sum[row] * add;
        for (std::size_t d = row * dim; d < (row + 1) * dim; ++d) {
          merged.acc[d] = merged.acc[d] * keep + part.acc[d] * add;
        }
      }
    }
    write_out(merged);
  }
}

Traffic BlockLoop::traffic() const {
  Traffic all;
  for (const Worker& worker : workers_) {
    all.read += worker.traffic.read;
    all.written += worker.traffic.written;
  }
  return all;
}

}  // namespace

std::unique_ptr<Backend> make_block_loop(Path path, const BackendOptions& options) {
  return std::make_unique<BlockLoop>(path, options);
}

}  // namespace coppice::bench
