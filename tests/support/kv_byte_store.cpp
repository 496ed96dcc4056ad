#include "support/kv_byte_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace coppice::test {

namespace {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t history_root(const kv::Namespace& ns) {
  std::uint64_t h = 0x9e3779b97f4a7c15ULL;
  for (const std::string* field : {&ns.salt, &ns.adapter}) {
    for (const char c : *field) h = mix(h ^ static_cast<unsigned char>(c));
    h = mix(h + 0x100);
  }
  return h;
}

std::uint64_t history_next(std::uint64_t history, kv::Token token) {
  return mix(history * 31 + static_cast<std::uint32_t>(token) + 1);
}

std::string to_text(const Row& row) {
  if (row.filled == 0) return "an unwritten slot";
  return fmt::format("token {} at position {} of group {}, history {:08x}", row.token, row.position, row.group,
                     row.history & 0xffffffffU);
}

KvByteStore::KvByteStore(const kv::CacheConfig& config)
    : num_blocks_(config.num_blocks),
      block_size_(config.block_size),
      written_in_(static_cast<std::size_t>(num_blocks_) * static_cast<std::size_t>(block_size_)) {
  for (const kv::GroupSpec& group : config.groups) n_layers_.push_back(static_cast<int>(group.layers.size()));
  layers_in_page_ = std::ranges::max(n_layers_);
  n_layers_.push_back(layers_in_page_);  // a state fills its pages
  bytes_.resize(written_in_.size() * static_cast<std::size_t>(layers_in_page_) * sizeof(Row));
}

std::size_t KvByteStore::place(kv::Slot slot, int layer) const {
  const kv::Slot row = (slot / block_size_ * layers_in_page_ + layer) * block_size_ + slot % block_size_;
  return static_cast<std::size_t>(row) * sizeof(Row);
}

std::string KvByteStore::copy(const kv::BlockOp& op) {
  if (op.kind != kv::BlockOp::Kind::kCopy) return "an operation that kv does not plan";
  const bool in_pool = op.src > 0 && op.src < num_blocks_ && op.dst > 0 && op.dst < num_blocks_;
  if (!in_pool || op.src == op.dst || op.n_slots < 1 || op.n_slots > block_size_) {
    return fmt::format("bad copy: {} slots of block {} to block {}", op.n_slots, op.src, op.dst);
  }
  const kv::Slot src = kv::Slot{op.src} * block_size_, dst = kv::Slot{op.dst} * block_size_;
  if (const int owner = row(src).group; owner != op.group) {
    return fmt::format("a copy of group {} from block {} of group {}", op.group, op.src, owner);
  }
  const int n = fault_ == StoreFault::kCopyOneShort ? op.n_slots - 1 : op.n_slots;
  for (int layer = 0; layer < (fault_ == StoreFault::kCopyOneLayer ? 1 : n_layers(op.group)); ++layer) {
    std::memcpy(bytes_.data() + place(dst, layer), bytes_.data() + place(src, layer),
                static_cast<std::size_t>(n) * sizeof(Row));
  }
  return "";
}

std::string KvByteStore::copy_all(std::vector<kv::BlockOp> copies) {
  if (fault_ == StoreFault::kCopyOfLastStep) std::swap(copies, late_);
  if (fault_ == StoreFault::kCopiesReversed) std::reverse(copies.begin(), copies.end());
  if (fault_ == StoreFault::kCopySkipped && !copies.empty()) copies.pop_back();
  for (const kv::BlockOp& op : copies) {
    if (std::string why = copy(op); !why.empty()) return why;
  }
  return "";
}

std::string KvByteStore::write(kv::Slot slot, const Row& row) {
  if (slot < block_size_ || slot >= static_cast<kv::Slot>(num_blocks_) * block_size_) {
    return fmt::format("a write to slot {} of block {}", slot, slot / block_size_);
  }
  std::uint32_t& last = written_in_[static_cast<std::size_t>(slot)];
  if (last == step_) {
    return fmt::format("slot {} of block {} is written twice in a step", slot % block_size_, slot / block_size_);
  }
  last = step_;
  for (int layer = 0; layer < n_layers(row.group); ++layer) {
    std::memcpy(bytes_.data() + place(slot, layer), &row, sizeof(Row));
  }
  return "";
}

std::string KvByteStore::run(const StoreStep& step) {
  ++step_;
  const bool late = fault_ == StoreFault::kCopyTooLate;
  if (!late) {
    if (std::string why = copy_all(step.copies); !why.empty()) return why;
  }
  for (const RowWrite& w : step.writes) {
    const bool last = &w == &step.writes.back();
    if (last && fault_ == StoreFault::kWriteLost) break;
    const kv::Slot slot = last && fault_ == StoreFault::kTailOffByOne ? w.slot + 1 : w.slot;
    if (std::string why = write(slot, w.row); !why.empty()) return why;
  }
  if (std::string why = run_states(step.states); !why.empty()) return why;
  return late ? copy_all(step.copies) : "";
}

// All are read before the first is written: several may read one.
std::string KvByteStore::run_states(const std::vector<StateWork>& states) {
  for (const StateWork& state : states) {
    if (state.in.empty() != (state.in_length == 0))
      return fmt::format("a step from {} tokens reads no state", state.in_length);
    if (std::string why = error_in_state(state.in, state.in_length, state.in_history); !why.empty()) return why;
  }
  for (const StateWork& state : states) {
    if (fault_ == StoreFault::kStateLost && &state == &states.back()) break;
    if (std::string why = write_state(state); !why.empty()) return why;
  }
  return "";
}

std::string KvByteStore::write_state(const StateWork& state) {
  const std::size_t n = state.out.size() - (fault_ == StoreFault::kStatePageLost ? 1 : 0);
  for (std::size_t i = 0; i < n; ++i) {
    for (int slot = 0; slot < block_size_; ++slot) {
      const Row row{static_cast<kv::Token>(i), state.out_length, static_cast<int>(n_layers_.size()) - 1, 1,
                    state.out_history};
      if (std::string why = write(kv::Slot{state.out[i]} * block_size_ + slot, row); !why.empty()) return why;
    }
  }
  return "";
}

std::string KvByteStore::error_in_state(std::span<const kv::BlockId> pages, std::int32_t length,
                                        std::uint64_t history) const {
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const Row wanted{static_cast<kv::Token>(i), length, static_cast<int>(n_layers_.size()) - 1, 1, history};
    for (int layer = 0; layer < layers_in_page_; ++layer) {
      for (int slot = 0; slot < block_size_; ++slot) {
        const Row stored = row(kv::Slot{pages[i]} * block_size_ + slot, layer);
        if (stored == wanted) continue;
        return fmt::format("page {} of a state of {} tokens (block {}): {} is stored, expected {}", i, length, pages[i],
                           to_text(stored), to_text(wanted));
      }
    }
  }
  return "";
}

std::string KvByteStore::run_failed(const StoreStep& step) {
  StoreStep rubbish = step;
  for (RowWrite& w : rubbish.writes) w.row = Row{.token = -99, .position = -99, .group = w.row.group, .filled = 1};
  for (StateWork& state : rubbish.states) state.out_history = 99;
  return run(rubbish);
}

Row KvByteStore::row(kv::Slot slot, int layer) const {
  Row row;
  std::memcpy(&row, bytes_.data() + place(slot, layer), sizeof(Row));
  return row;
}

}  // namespace coppice::test
