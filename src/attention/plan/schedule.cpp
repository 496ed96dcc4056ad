#include "attention/plan/schedule.h"

#include <algorithm>
#include <cmath>

namespace coppice::attention {

namespace {

/// A piece of a band costs at least so many times what the cut costs.
constexpr double kWorth = 2.0;

/// Some rows of a run and the blocks that they see, before it is split along its blocks.
struct Band {
  std::int32_t first_row = 0, n_rows = 0;      ///< of SharePlan::rows
  std::int32_t first_block = 0, n_blocks = 0;  ///< of SharePlan::blocks
  std::int32_t run_offset = 0;                 ///< slots
  double cost = 0.0;
};

class Scheduler {
 public:
  Scheduler(const SharePlan& plan, const CostModel& cost, Schedule& out) : plan_(plan), cost_(cost), out_(out) {
    double total = 0.0;
    for_each_band([&](const Band& band) { total += band.cost; });
    share_ = total / cost_.pieces;
  }

  void lay_out() {
    out_.tiles.clear();
    out_.jobs.clear();
    out_.n_partials = 0;
    for_each_band([&](const Band& band) { lay_out(band); });
    end_job();
    // Ties in the order of tiles, so that equal plans give equal schedules.
    std::ranges::sort(out_.jobs, [](const Job& a, const Job& b) {
      return a.cost != b.cost ? a.cost > b.cost : a.first_tile < b.first_tile;
    });
  }

  /// A counting sort of (tile, row) by row.
  void list_partials() {
    auto& first = out_.first_partial_of_row;
    first.assign(static_cast<std::size_t>(plan_.n_rows) + 1, 0);
    for (const Tile& t : out_.tiles) {
      for (const RowInterval& r : rows_of(t.first_row, t.n_rows)) ++first[static_cast<std::size_t>(r.row)];
    }
    std::int32_t end = 0;
    for (std::int32_t& f : first) f = end += f;
    out_.partials.resize(static_cast<std::size_t>(out_.n_partials));
    for (std::size_t i = out_.tiles.size(); i-- > 0;) {  // backwards: each row's end becomes its begin
      const Tile& t = out_.tiles[i];
      const auto rows = rows_of(t.first_row, t.n_rows);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto at = static_cast<std::size_t>(--first[static_cast<std::size_t>(rows[r].row)]);
        out_.partials[at] = t.first_partial + static_cast<std::int32_t>(r);
      }
    }
  }

 private:
  std::span<const RowInterval> rows_of(std::int32_t first, std::int32_t n) const {
    return std::span(plan_.rows).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
  }

  /// 1, 2, 4 and so on: 2, 4, 8 or more workers get equally many.
  int count_pieces(const Band& band) const {
    const double least = std::max(share_, kWorth * (cost_.overhead + cost_.partial * band.n_rows));
    int n = 1;
    while (2 * n * least <= band.cost && 2 * n <= band.n_blocks) n *= 2;
    return n;
  }

  /// Calls f(band) for all runs' bands of at most max_tile_rows rows.
  template <class F>
  void for_each_band(F f) const {
    for (const Run& run : plan_.runs) {
      const int n = (run.n_rows + cost_.max_tile_rows - 1) / cost_.max_tile_rows;
      const auto border = [&](int i) { return static_cast<std::int32_t>(std::int64_t{run.n_rows} * i / n); };
      for (int i = 0; i < n; ++i) f(make_band(run, border(i), border(i + 1)));
    }
  }

  Band make_band(const Run& run, std::int32_t begin, std::int32_t end) const {
    const int bs = plan_.block_size;
    std::int32_t lo = run.n_blocks * bs, hi = 0;
    std::int64_t seen = 0;
    for (const RowInterval& r : rows_of(run.first_row + begin, end - begin)) {
      lo = std::min(lo, r.lo);
      hi = std::max(hi, r.hi);
      seen += r.hi - r.lo;
    }
    Band band{.first_row = run.first_row + begin, .n_rows = end - begin};
    const std::int32_t skipped = lo / bs;
    band.first_block = run.first_block + skipped;
    band.n_blocks = (hi + bs - 1) / bs - skipped;
    band.run_offset = skipped * bs;
    band.cost = cost_.overhead + cost_.block * band.n_blocks + cost_.row * static_cast<double>(seen) / bs;
    return band;
  }

  /// What blocks [begin, end) of the band cost, overhead left out.
  double cost_of(const Band& band, std::int32_t begin, std::int32_t end) const {
    const std::int32_t from = band.run_offset + begin * plan_.block_size;
    const std::int32_t to = band.run_offset + end * plan_.block_size;
    std::int64_t seen = 0;
    for (const RowInterval& r : rows_of(band.first_row, band.n_rows)) {
      seen += std::max(0, std::min(r.hi, to) - std::max(r.lo, from));
    }
    return cost_.block * (end - begin) + cost_.row * static_cast<double>(seen) / plan_.block_size;
  }

  /// Each piece of a band that is cut is a job; small bands make one together.
  void lay_out(const Band& band) {
    const int n = count_pieces(band);
    if (n > 1 || band.cost >= share_) end_job();
    std::int32_t begin = 0;
    for (int i = 1; i <= n; ++i) {
      const std::int32_t end = i == n ? band.n_blocks : cut_at(band, (band.cost - cost_.overhead) * i / n);
      add_tile(band, begin, end);
      if (n > 1 || job_.cost >= std::max(share_, kWorth * cost_.overhead)) end_job();
      begin = end;
    }
  }

  /// The border between blocks that is nearest to `target`, in cost from the band's begin, overhead left out.
  std::int32_t cut_at(const Band& band, double target) const {
    std::int32_t below = 0, above = band.n_blocks;  // cost_of(0, below) <= target < cost_of(0, above)
    while (below + 1 < above) {
      const std::int32_t middle = below + (above - below) / 2;
      (cost_of(band, 0, middle) <= target ? below : above) = middle;
    }
    return target - cost_of(band, 0, below) < cost_of(band, 0, above) - target ? below : above;
  }

  /// Blocks [begin, end) of the band, without the first and last rows that see none of them.
  void add_tile(const Band& band, std::int32_t begin, std::int32_t end) {
    if (begin == end) return;
    const std::int32_t from = band.run_offset + begin * plan_.block_size;
    const std::int32_t to = band.run_offset + end * plan_.block_size;
    const auto sees = [&](const RowInterval& r) { return r.lo < to && from < r.hi; };
    const auto rows = rows_of(band.first_row, band.n_rows);
    auto first = rows.begin(), last = rows.end();
    while (first != last && !sees(*first)) ++first;
    while (first != last && !sees(*std::prev(last))) --last;
    if (first == last) return;
    const auto n_rows = static_cast<std::int32_t>(last - first);
    out_.tiles.push_back({.first_block = band.first_block + begin,
                          .n_blocks = end - begin,
                          .first_row = band.first_row + static_cast<std::int32_t>(first - rows.begin()),
                          .n_rows = n_rows,
                          .run_offset = from,
                          .first_partial = out_.n_partials});
    out_.n_partials += n_rows;
    job_.n_tiles += 1;
    job_.cost += cost_.overhead + cost_of(band, begin, end);
  }

  void end_job() {
    if (job_.n_tiles > 0) out_.jobs.push_back(job_);
    job_ = {.first_tile = static_cast<std::int32_t>(out_.tiles.size())};
  }

  const SharePlan& plan_;
  const CostModel& cost_;
  Schedule& out_;
  double share_ = 0.0;  ///< about what a job costs
  Job job_;             ///< being filled
};

}  // namespace

void make_schedule(const SharePlan& plan, const CostModel& cost, Schedule& schedule) {
  Scheduler scheduler(plan, cost, schedule);
  scheduler.lay_out();
  scheduler.list_partials();
}

}  // namespace coppice::attention
