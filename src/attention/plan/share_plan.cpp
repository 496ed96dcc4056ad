#include "attention/plan/share_plan.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace coppice::attention {

namespace {

std::span<const kv::BlockId> cut(std::span<const kv::BlockId> table, std::int32_t begin, std::int32_t end) {
  return table.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

/// Leading entries that two equally long tables have in common. Most have many: whole stretches are compared at once,
/// which the compiler makes a memcmp, several times as fast as entry by entry.
std::int32_t common(std::span<const kv::BlockId> a, std::span<const kv::BlockId> b) {
  constexpr std::size_t kStretch = 64;
  std::size_t i = 0;
  while (i + kStretch <= a.size() && std::ranges::equal(a.subspan(i, kStretch), b.subspan(i, kStretch))) i += kStretch;
  while (i < a.size() && a[i] == b[i]) ++i;
  return static_cast<std::int32_t>(i);
}

}  // namespace

const SharePlan& SharePlanner::plan(std::span<const SequenceRows> sequences) {
  if (whole_ && stands_still(sequences)) {
    ++refreshed_;
  } else {
    whole_ = false;
    rebuild(sequences);
    whole_ = true;
    ++rebuilt_;
  }
  write_intervals(sequences);
  return plan_;
}

SharePlanner::Entries SharePlanner::visible_entries(const SequenceRows& s) const {
  const std::int64_t bs = s.table.block_size;
  const std::int64_t end = std::int64_t{s.first_position} + s.n_rows;
  return {static_cast<std::int32_t>(group_.first_visible(s.first_position) / bs),
          static_cast<std::int32_t>((end + bs - 1) / bs)};
}

/// The plan is its own memory: its blocks differ from each other, and its runs cover each sequence's visible entries.
/// If all of these still hold the ids of their runs, the same entries are equal as before, whatever happened meanwhile.
bool SharePlanner::stands_still(std::span<const SequenceRows> sequences) const {
  if (sequences.size() != visible_.size() || sequences.empty()) return false;
  if (sequences.front().table.block_size != plan_.block_size) return false;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    if (visible_entries(sequences[s]) != visible_[s]) return false;
  }
  for (std::size_t r = 0; r < readers_of_runs_.size(); ++r) {
    const RunReaders& of_run = readers_of_runs_[r];
    const std::span<const kv::BlockId> blocks = plan_.blocks_of(plan_.runs[r]);
    const std::int32_t end = of_run.index + plan_.runs[r].n_blocks;
    for (std::int32_t i = 0; i < of_run.n_readers; ++i) {
      const auto reader = static_cast<std::size_t>(readers_[static_cast<std::size_t>(of_run.first_reader + i)]);
      if (!std::ranges::equal(cut(sequences[reader].table.blocks, of_run.index, end), blocks)) return false;
    }
  }
  return true;
}

void SharePlanner::rebuild(std::span<const SequenceRows> sequences) {
  plan_.block_size = sequences.empty() ? 0 : sequences.front().table.block_size;
  plan_.blocks.clear();
  plan_.runs.clear();
  readers_of_runs_.clear();
  readers_.clear();
  visible_.clear();
  for (const SequenceRows& s : sequences) visible_.push_back(visible_entries(s));

  find_stretches(sequences);
  std::ranges::sort(stretches_, {}, [](const Stretch& s) { return std::tuple(s.owner, s.reader, s.entries.begin); });
  for (std::size_t first = 0, end = 0; first < stretches_.size(); first = end) {
    const std::int32_t owner = stretches_[first].owner;
    while (end < stretches_.size() && stretches_[end].owner == owner) ++end;
    cut_runs(std::span(stretches_).subspan(first, end - first),
             sequences[static_cast<std::size_t>(owner)].table.blocks);
  }
}

/// Cuts each sequence's visible entries into stretches of one owner. Entries seen for the first time are marked one by
/// one; where somebody was here before, tables are compared side by side.
void SharePlanner::find_stretches(std::span<const SequenceRows> sequences) {
  const auto n = static_cast<std::uint32_t>(sequences.size());
  if (epoch_ > std::numeric_limits<std::uint32_t>::max() - marked_ - 2 * n) {
    std::ranges::fill(marks_, 0U);
    epoch_ = 1;
  } else {
    epoch_ += marked_;
  }
  marked_ = n;
  stretches_.clear();
  first_stretch_.clear();
  for (std::uint32_t s = 0; s < n; ++s) {
    first_stretch_.push_back(stretches_.size());
    const std::span<const kv::BlockId> table = sequences[s].table.blocks;
    const auto reader = static_cast<std::int32_t>(s);
    const std::int32_t end = visible_[s].end;
    for (std::int32_t b = visible_[s].begin; b < end;) {
      const std::int32_t first = b;
      std::int32_t owner = owner_of(table[static_cast<std::size_t>(b)]);
      if (owner < 0) {
        owner = reader;
        do {
          marks_[static_cast<std::size_t>(table[static_cast<std::size_t>(b)])] = epoch_ + s;
        } while (++b < end && owner_of(table[static_cast<std::size_t>(b)]) < 0);
      } else {
        const std::int32_t until = std::min(end, end_of_owned(owner, b));
        const std::span<const kv::BlockId> theirs = sequences[static_cast<std::size_t>(owner)].table.blocks;
        b += common(cut(table, b, until), cut(theirs, b, until));
      }
      stretches_.push_back({owner, reader, {first, b}});
    }
  }
}

/// The first sequence of this rebuild that met the block, or -1.
std::int32_t SharePlanner::owner_of(kv::BlockId block) {
  const auto at = static_cast<std::size_t>(block);
  if (at >= marks_.size()) marks_.resize(at + 1, 0U);
  return marks_[at] < epoch_ ? -1 : static_cast<std::int32_t>(marks_[at] - epoch_);
}

/// End of the owner's own stretch around table entry `index`: what lies behind has another owner.
std::int32_t SharePlanner::end_of_owned(std::int32_t owner, std::int32_t index) const {
  const auto at = static_cast<std::size_t>(owner);
  const std::size_t first = first_stretch_[at], end = first_stretch_[at + 1];
  const auto stretches = std::span(stretches_).subspan(first, end - first);
  const auto after = std::ranges::upper_bound(stretches, index, {}, [](const Stretch& s) { return s.entries.begin; });
  return std::prev(after)->entries.end;
}

/// Between two neighbouring borders of stretches the readers are the same: a run.
void SharePlanner::cut_runs(std::span<const Stretch> of_one_owner, std::span<const kv::BlockId> table) {
  cuts_.clear();
  for (const Stretch& s : of_one_owner) {
    cuts_.push_back(s.entries.begin);
    cuts_.push_back(s.entries.end);
  }
  std::ranges::sort(cuts_);
  cuts_.erase(std::ranges::unique(cuts_).begin(), cuts_.end());
  for (std::size_t c = 0; c + 1 < cuts_.size(); ++c) {
    const std::int32_t begin = cuts_[c], end = cuts_[c + 1];
    const auto first_reader = static_cast<std::int32_t>(readers_.size());
    for (const Stretch& s : of_one_owner) {
      if (s.entries.begin <= begin && end <= s.entries.end) readers_.push_back(s.reader);
    }
    const std::int32_t n_readers = static_cast<std::int32_t>(readers_.size()) - first_reader;
    if (n_readers == 0) continue;  // between two stretches of the owner
    readers_of_runs_.push_back({begin, first_reader, n_readers});
    plan_.runs.push_back({.first_block = static_cast<std::int32_t>(plan_.blocks.size()), .n_blocks = end - begin});
    const auto blocks = cut(table, begin, end);
    plan_.blocks.insert(plan_.blocks.end(), blocks.begin(), blocks.end());
  }
}

void SharePlanner::write_intervals(std::span<const SequenceRows> sequences) {
  plan_.n_rows = sequences.empty() ? 0 : sequences.back().first_row + sequences.back().n_rows;
  plan_.rows.clear();
  for (std::size_t r = 0; r < readers_of_runs_.size(); ++r) {
    const RunReaders& of_run = readers_of_runs_[r];
    Run& run = plan_.runs[r];
    const std::int64_t first = std::int64_t{of_run.index} * plan_.block_size;
    const std::int64_t size = std::int64_t{run.n_blocks} * plan_.block_size;
    run.first_row = static_cast<std::int32_t>(plan_.rows.size());
    for (std::int32_t i = 0; i < of_run.n_readers; ++i) {
      const auto reader = readers_[static_cast<std::size_t>(of_run.first_reader + i)];
      const SequenceRows& s = sequences[static_cast<std::size_t>(reader)];
      for (int row = 0; row < s.n_rows; ++row) {
        const std::int64_t position = std::int64_t{s.first_position} + row;
        const std::int64_t lo = std::max<std::int64_t>(group_.first_visible(position) - first, 0);
        const std::int64_t hi = std::min(group_.end_visible(position, s.both_ways) - first, size);
        if (lo < hi) {
          plan_.rows.push_back({s.first_row + row, static_cast<std::int32_t>(lo), static_cast<std::int32_t>(hi)});
        }
      }
    }
    run.n_rows = static_cast<std::int32_t>(plan_.rows.size()) - run.first_row;
  }
}

}  // namespace coppice::attention
