#include "bench_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "attention/reference.h"

namespace coppice::bench {

std::string_view order_name(KvOrder order) {
  return order == KvOrder::kSlotHeadDim ? "slot-head-dim" : "head-slot-dim";
}

namespace {

constexpr std::uint64_t kSeed = 1;

struct ModelShape {
  std::string_view name;
  attention::HeadShape heads;
};

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

double to_double(std::uint16_t half) {
  return static_cast<double>(std::bit_cast<_Float16>(half));
}

/// Each sequence decodes one token and sees `context` keys, in whole blocks.
test::AttentionCase decodes(const ModelShape& model, int context, int batch, bool shared) {
  const int blocks = context / kBlockSize, tables = shared ? 1 : batch;
  test::AttentionCase c{
      .name = fmt::format("{}/{}k/batch{}/{}", model.name, context / 1024, batch, shared ? "shared" : "unrelated"),
      .heads = model.heads,
      .group = {},
      .block_size = kBlockSize,
      .n_blocks = 1 + blocks * tables,
      .sequences = {}};
  std::mt19937_64 random(kSeed);
  test::ShuffledIds ids(c.n_blocks, random);
  for (int i = 0; i < batch; ++i) {
    c.sequences.push_back({.first_position = context - 1, .n_rows = 1, .table = {}});
    auto& table = c.sequences.back().table;
    if (i > 0 && shared) table = c.sequences.front().table;
    while (table.size() < size(blocks)) table.push_back(ids.next());
  }
  return c;
}

/// One head's keys or values by position.
class HeadRows {
 public:
  HeadRows(const Step& step, const test::CaseSequence& sequence, const std::byte* base, int kv_head)
      : step_(step), sequence_(sequence), base_(base), kv_head_(kv_head) {}

  /// All values of the head.
  std::vector<double> at(std::int64_t position) const {
    const auto& what = step_.c.what;
    if (step_.c.format != attention::KvFormat::kF16) {
      const kv::BlockId id = sequence_.table[static_cast<std::size_t>(position / what.block_size)];
      const kv::Slot slot = kv::Slot{id} * what.block_size + position % what.block_size;
      return attention::stored_head(what.heads, step_.layers.front(), base_, slot, kv_head_);
    }
    std::vector<double> values(size(what.heads.head_dim));
    for (std::size_t d = 0; d < values.size(); ++d) values[d] = f16_at(position, d);
    return values;
  }

 private:
  double f16_at(std::int64_t position, std::size_t d) const {
    const int bs = step_.c.what.block_size;
    const auto block = size(sequence_.table[static_cast<std::size_t>(position / bs)]);
    const std::size_t element = static_cast<std::size_t>(position % bs) * step_.slot_stride() + d;
    std::uint16_t half = 0;
    const std::byte* head = base_ + size(kv_head_) * step_.head_stride() * sizeof half;
    std::memcpy(&half, head + block * step_.c.block_bytes() / 2 + element * sizeof half, sizeof half);
    return to_double(half);
  }

  const Step& step_;
  const test::CaseSequence& sequence_;
  const std::byte* base_;
  int kv_head_;
};

std::vector<double> reference_head(const Step& step, const attention::PoolView& pool,
                                   const test::CaseSequence& sequence, std::int64_t position, const float* q,
                                   int kv_head) {
  const HeadRows keys(step, sequence, pool.keys, kv_head), values(step, sequence, pool.values, kv_head);
  const auto dim = size(step.c.what.heads.head_dim);
  const std::int64_t first = attention::first_visible(step.c.what.group, position);
  std::vector<double> weights;
  for (std::int64_t key = first; key <= position; ++key) {
    const std::vector<double> k = keys.at(key);
    double score = 0;
    for (std::size_t d = 0; d < dim; ++d) score += double{q[d]} * k[d];
    weights.push_back(score * double{step.c.what.heads.scale});
  }
  const double max = *std::ranges::max_element(weights);
  for (double& w : weights) w = std::exp(w - max);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> out(dim);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::vector<double> v = values.at(first + static_cast<std::int64_t>(i));
    for (std::size_t d = 0; d < dim; ++d) out[d] += weights[i] / sum * v[d];
  }
  return out;
}

}  // namespace

std::string BenchCase::name() const {
  return fmt::format("{}/{}", what.name, format == attention::KvFormat::kF16 ? order_name(order) : format_name(format));
}

std::size_t BenchCase::row_bytes() const {
  return size(what.heads.n_kv_head) * attention::head_bytes(format, what.heads.head_dim);
}

double BenchCase::multiply_adds() const {
  double pairs = 0;  // (row, visible key)
  for (const test::CaseSequence& s : what.sequences) {
    for (std::int64_t p = s.first_position; p < s.length(); ++p) {
      pairs += static_cast<double>(p + 1 - attention::first_visible(what.group, p));
    }
  }
  return 2.0 * pairs * what.heads.n_head * what.heads.head_dim;
}

bool BenchCase::all_share() const {
  const auto& all = what.sequences;
  return all.size() > 1 && std::ranges::all_of(all, [&](const auto& s) { return s.table == all.front().table; });
}

bool BenchCase::one_pass() const {
  std::size_t entries = 0;
  for (const test::CaseSequence& s : what.sequences) {
    if (s.n_rows != 1) return false;
    entries += s.table.size();
  }
  return entries == size(what.unique_blocks());
}

std::size_t Step::slot_stride() const {
  const auto& heads = c.what.heads;
  return size(c.order == KvOrder::kSlotHeadDim ? heads.n_kv_head * heads.head_dim : heads.head_dim);
}

std::size_t Step::head_stride() const {
  const int dim = c.what.heads.head_dim;
  return size(c.order == KvOrder::kSlotHeadDim ? dim : c.what.block_size * dim);
}

std::vector<BenchCase> all_cases(std::span<const attention::KvFormat> formats) {
  std::vector<BenchCase> cases;
  const auto add = [&](const test::AttentionCase& c, bool both_orders) {
    for (const attention::KvFormat format : formats) {
      cases.push_back({c, KvOrder::kSlotHeadDim, format});
      if (format != attention::KvFormat::kF16) {
        cases.back().what.heads.scale /= 64.0F;  // codes are whole numbers
      } else if (both_orders) {
        cases.push_back({c, KvOrder::kHeadSlotDim});
      }
    }
  };
  const ModelShape models[] = {{"smollm2-135m", {9, 3, 64, 0.125F}}, {"8b", {32, 8, 128, 0.08838835F}}};
  for (const ModelShape& model : models) {
    for (const int context : {1024, 2048, 4096, 16384}) {
      for (const bool shared : {false, true}) {
        for (const int batch : {1, 2, 4, 8, 16}) {
          if (!shared || batch > 1) add(decodes(model, context, batch, shared), true);
        }
      }
    }
  }
  for (const test::AttentionCase& c : test::named_cases(kBlockSize)) add(c, false);
  return cases;
}

std::size_t arena_bytes(std::span<const BenchCase> cases, std::size_t enough, std::size_t allowed) {
  std::size_t least = 0, wanted = 0;
  for (const BenchCase& c : cases) {
    least = std::max(least, c.pool_bytes());
    wanted = std::max(wanted, c.layers_of(enough) * c.pool_bytes());
  }
  return std::max(least, std::min(wanted, allowed));
}

void fill_f16(HugeBuffer& arena) {
  std::mt19937_64 random(kSeed);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= arena.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t bits = (random() & 0x83FF83FF83FF83FFU) | 0x3400340034003400U;  // random sign and mantissa
    std::memcpy(arena.data() + at, &bits, sizeof bits);
  }
}

namespace {

/// Heads lie side by side, in either order.
void clear_signs_of_scales(const BenchCase& c, std::byte* pool) {
  if (!attention::is_rotated(c.format)) return;
  const std::size_t head = attention::head_bytes(c.format, c.what.heads.head_dim);
  for (std::size_t at = 0; at < c.pool_bytes(); at += head) pool[at + 1] &= std::byte{0x7F};
}

}  // namespace

Step make_step(const BenchCase& c, HugeBuffer& arena) {
  Step step{.c = c, .layers = {}, .q = test::make_queries(c.what, kSeed), .out = {}};
  step.out.resize(step.q.size());
  const std::size_t bytes = c.pool_bytes();
  for (std::size_t at = 0; at + bytes <= arena.size(); at += bytes) {
    clear_signs_of_scales(c, arena.data() + at);
    step.layers.push_back({.format = c.format,
                           .block_size = c.what.block_size,
                           .row_bytes = c.row_bytes(),
                           .keys = arena.data() + at,
                           .values = arena.data() + at + bytes / 2});
  }
  return step;
}

double distance_from_reference(const Step& step, std::size_t layer) {
  const auto& heads = step.c.what.heads;
  const auto dim = size(heads.head_dim);
  double wrong = 0, all = 0;
  for (const bool last : {false, true}) {
    const auto& sequence = last ? step.c.what.sequences.back() : step.c.what.sequences.front();
    const int row = last ? step.c.what.n_rows() - 1 : 0;
    const std::int64_t position = last ? sequence.length() - 1 : sequence.first_position;
    for (int head = 0; head < heads.n_head; ++head) {
      const std::size_t first = size(row * heads.n_head + head) * dim;
      const auto expected = reference_head(step, step.layers[layer], sequence, position, step.q.data() + first,
                                           head / heads.heads_per_kv());
      for (std::size_t d = 0; d < dim; ++d) {
        const double difference = double{step.out[first + d]} - expected[d];
        wrong += difference * difference;
        all += expected[d] * expected[d];
      }
    }
  }
  return std::sqrt(wrong / all);
}

}  // namespace coppice::bench
