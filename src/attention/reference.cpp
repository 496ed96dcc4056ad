#include "attention/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
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

/// Element d of one head of a slot's row.
double element(const PoolView& pool, const std::byte* base, kv::Slot slot, int index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, base + static_cast<std::size_t>(slot) * pool.row_bytes + 2 * static_cast<std::size_t>(index), 2);
  return from_half(bits);
}

}  // namespace

void attend_reference(const HeadShape& heads, const PoolView& pool, const kv::GroupSpec& group,
                      std::span<const SequenceRows> sequences, std::span<const float> q, std::span<float> out) {
  const auto dim = static_cast<std::size_t>(heads.head_dim), n_head = static_cast<std::size_t>(heads.n_head);
  std::vector<double> weights, sum(dim);
  for (const SequenceRows& s : sequences) {
    for (int i = 0; i < s.n_rows; ++i) {
      const std::int64_t position = std::int64_t{s.first_position} + i;
      const std::int64_t first = first_visible(group, position);
      for (int h = 0; h < heads.n_head; ++h) {
        const std::size_t at = (static_cast<std::size_t>(s.first_row + i) * n_head + static_cast<std::size_t>(h)) * dim;
        const int kv_column = h / heads.heads_per_kv() * heads.head_dim;
        weights.clear();
        for (std::int64_t p = first; p <= position; ++p) {
          double dot = 0.0;
          for (int d = 0; d < heads.head_dim; ++d) {
            dot += static_cast<double>(q[at + static_cast<std::size_t>(d)]) *
                   element(pool, pool.keys, s.table.slot(p), kv_column + d);
          }
          weights.push_back(dot * static_cast<double>(heads.scale));
        }
        const double max = std::ranges::max(weights);
        double total = 0.0;
        std::ranges::fill(sum, 0.0);
        for (std::int64_t p = first; p <= position; ++p) {
          const double w = std::exp(weights[static_cast<std::size_t>(p - first)] - max);
          total += w;
          for (int d = 0; d < heads.head_dim; ++d) {
            sum[static_cast<std::size_t>(d)] += w * element(pool, pool.values, s.table.slot(p), kv_column + d);
          }
        }
        for (std::size_t d = 0; d < dim; ++d) out[at + d] = static_cast<float>(sum[d] / total);
      }
    }
  }
}

}  // namespace coppice::attention
