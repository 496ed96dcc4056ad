// Another KV format: kv_format.h, this file, and in cpu/ kv_codec.cpp, kv_encode-inl.h and kv_load-inl.h. What is not
// f16 or int8 is taken for turbo4 in head_bytes(), here and in kv_encode-inl.h: look for kInt8. Heads that it can't
// hold: row_bytes() in executor/base/page_layout.cpp. On GPUs it must be refused until they know it:
// misfit_of_options() in cli/devices.cpp, checked_format() in executor/cuda/cuda_executor.cpp. Its name:
// serve_options.cpp, other_servers.cpp, bench.cpp, bench/micro/attention_bench.cpp, bench/bounds.py,
// scripts/bench-quality.sh.
#include "attention/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <vector>

namespace coppice::attention {

namespace {

double from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double magnitude = 0.0;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = mantissa * 0x1p-24;
  } else {
    const auto biased = static_cast<std::uint64_t>(exponent - 15 + 1023);
    magnitude = std::bit_cast<double>(biased << 52 | static_cast<std::uint64_t>(mantissa) << 42);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double read_half(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return from_half(bits);
}

/// Sums over j of (-1)^popcount(i & j) x[j], where j differs from i in one digit, of n values, which weighs `weight`.
std::vector<double> digit_sums(const std::vector<double>& x, std::size_t n, std::size_t weight) {
  std::vector<double> sums(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t digit = i / weight % n;
    for (std::size_t j = 0; j < n; ++j) {
      const double term = x[i - digit * weight + j * weight];
      sums[i] += std::popcount(digit & j) % 2 == 0 ? term : -term;
    }
  }
  return sums;
}

/// The inverse rotation: x[i] = sign[i] * sum over j of (-1)^popcount(i & j) y[j] / sqrt(piece). The sum is made for
/// the lower half of j's bits first, then for the upper half: most of what tests of formats do is this.
void rotate_back(std::vector<double>& y) {
  const int n = static_cast<int>(y.size());
  for (int at = 0, piece = 0; at < n; at += piece) {
    piece = rotated_piece(n - at);
    const auto size = static_cast<std::size_t>(piece), low = std::size_t{1} << (std::bit_width(size) / 2);
    const std::vector<double> stored(y.begin() + at, y.begin() + at + piece);
    const std::vector<double> x = digit_sums(digit_sums(stored, low, 1), size / low, low);
    for (int i = 0; i < piece; ++i)
      y[static_cast<std::size_t>(at + i)] =
          x[static_cast<std::size_t>(i)] * double{rotation_sign(at + i)} / std::sqrt(piece);
  }
}

/// Decodes each head of a slot when it is first asked for.
class StoredHeads {
 public:
  StoredHeads(const HeadShape& heads, const PoolView& pool, const std::byte* base)
      : heads_(heads), pool_(pool), base_(base) {}

  const std::vector<double>& at(kv::Slot slot, int kv_head) {
    auto& head = known_[static_cast<std::size_t>(slot) * static_cast<std::size_t>(heads_.n_kv_head) +
                        static_cast<std::size_t>(kv_head)];
    if (head.empty()) head = stored_head(heads_, pool_, base_, slot, kv_head);
    return head;
  }

 private:
  const HeadShape& heads_;
  const PoolView& pool_;
  const std::byte* base_;
  std::unordered_map<std::size_t, std::vector<double>> known_;
};

}  // namespace

std::vector<double> stored_head(const HeadShape& heads, const PoolView& pool, const std::byte* base, kv::Slot slot,
                                int kv_head) {
  const std::byte* head = base + static_cast<std::size_t>(slot / pool.block_size) * pool.block_stride +
                          static_cast<std::size_t>(slot % pool.block_size) * pool.row_bytes +
                          head_bytes(pool.format, heads.head_dim) * static_cast<std::size_t>(kv_head);
  const auto n = static_cast<std::size_t>(heads.head_dim);
  std::vector<double> values(n);
  if (pool.format == KvFormat::kF16) {
    for (std::size_t i = 0; i < n; ++i) values[i] = read_half(head + 2 * i);
    return values;
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (pool.format == KvFormat::kInt8) {
      values[i] = static_cast<std::int8_t>(head[2 + i]);
    } else {
      const auto pair = static_cast<unsigned>(head[2 + i / 32 * 16 + i % 16]);
      values[i] = kTurbo4Levels[i % 32 < 16 ? pair & 15 : pair >> 4];
    }
    values[i] *= read_half(head);
  }
  rotate_back(values);
  return values;
}

void attend_reference(const HeadShape& heads, const PoolView& pool, const kv::GroupSpec& group,
                      std::span<const SequenceRows> sequences, std::span<const float> q, std::span<float> out,
                      std::span<const float> sinks) {
  const auto dim = static_cast<std::size_t>(heads.head_dim), n_head = static_cast<std::size_t>(heads.n_head);
  std::vector<double> weights, sum(dim);
  StoredHeads keys(heads, pool, pool.keys), values(heads, pool, pool.values);
  for (const SequenceRows& s : sequences) {
    for (int i = 0; i < s.n_rows; ++i) {
      const std::int64_t position = std::int64_t{s.first_position} + i;
      const std::int64_t first = group.first_visible(position), end = group.end_visible(position, s.both_ways);
      for (int h = 0; h < heads.n_head; ++h) {
        const std::size_t at = (static_cast<std::size_t>(s.first_row + i) * n_head + static_cast<std::size_t>(h)) * dim;
        const int kv_head = h / heads.heads_per_kv();
        weights.clear();
        for (std::int64_t p = first; p < end; ++p) {
          const std::vector<double>& key = keys.at(s.table.slot(p), kv_head);
          double dot = 0.0;
          for (std::size_t d = 0; d < dim; ++d) dot += static_cast<double>(q[at + d]) * key[d];
          const double score = dot * double{heads.scale}, cap = heads.softcap;
          weights.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
        }
        double max = std::ranges::max(weights), total = 0.0;
        if (!sinks.empty()) {
          const double sink = sinks[static_cast<std::size_t>(h)];
          max = std::max(max, sink);
          total = std::exp(sink - max);
        }
        std::ranges::fill(sum, 0.0);
        for (std::int64_t p = first; p < end; ++p) {
          const double w = std::exp(weights[static_cast<std::size_t>(p - first)] - max);
          total += w;
          const std::vector<double>& value = values.at(s.table.slot(p), kv_head);
          for (std::size_t d = 0; d < dim; ++d) sum[d] += w * value[d];
        }
        for (std::size_t d = 0; d < dim; ++d) out[at + d] = static_cast<float>(sum[d] / total);
      }
    }
  }
}

}  // namespace coppice::attention
