#include "sampling/logit_scan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>

#include "check/assert.h"

namespace coppice::sampling {

namespace {

constexpr std::size_t kBlock = LogitScan::kBlock;
// Sixteen floats at once: the compiler makes one, two or four registers of them. Spelled out, because it may not
// reorder float sums and maxima itself.
using Lanes [[gnu::vector_size(64)]] = float;
using IntLanes [[gnu::vector_size(64)]] = std::int32_t;
constexpr std::size_t kLanes = 16;

// Loops over a whole row are compiled for three levels of x86 and chosen when the program is loaded: before the thread
// sanitizer is ready for its calls in them, so not under it.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COPPICE_ROW_LOOP
#endif
#endif
#if !defined(COPPICE_ROW_LOOP) && defined(__x86_64__) && defined(__linux__)
#define COPPICE_ROW_LOOP __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif !defined(COPPICE_ROW_LOOP)
#define COPPICE_ROW_LOOP
#endif

/// Cody-Waite: x = n ln2 + r, |r| <= ln2 / 2, e^r by a polynomial (Taylor to r^6, error 1.2e-7), 2^n by its bits.
/// One text for one float (F, I = float, int32) and for sixteen. NaN gives 0, as everything below -87.
template <class F, class I>
[[gnu::always_inline]] inline void exp_to(const F& x, F& out) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const F zero = {};
  const F lowest = zero - 87.0F;
  const F clamped = x >= lowest ? x : lowest;
  const F shifted = clamped * 1.44269504F + kRound;
  const F n = shifted - kRound;
  const F r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  F p = r * (1.0F / 720) + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // The builtin, not std::bit_cast: a function that returns sixteen floats has no ABI on every level.
  const I whole = __builtin_bit_cast(I, shifted) - __builtin_bit_cast(std::int32_t, kRound);
  const I bits = __builtin_bit_cast(I, p) + (whole << 23);
  const F scaled = __builtin_bit_cast(F, bits);
  out = x >= lowest ? scaled : zero;
}

float weight_of(float logit, float max, float scale) {
  float weight = 0;
  exp_to<float, std::int32_t>((logit - max) * scale, weight);
  return weight;
}

/// maxima[i] of each whole block i of kBlock logits. Comparisons with NaN are false: NaN is never the maximum.
COPPICE_ROW_LOOP void block_maxima(const float* logits, std::size_t n_blocks, float* maxima) {
  for (std::size_t i = 0; i < n_blocks; ++i, logits += kBlock) {
    Lanes best = Lanes{} + kNone;
    for (std::size_t k = 0; k < kBlock; k += kLanes) {
      Lanes x;
      std::memcpy(&x, logits + k, sizeof(x));
      best = x > best ? x : best;
    }
    float max = best[0];
    for (std::size_t j = 1; j < kLanes; ++j) max = best[j] > max ? best[j] : max;
    maxima[i] = max;
  }
}

/// sums[i] of the weights exp((logit - max) * scale) of each whole block.
COPPICE_ROW_LOOP void block_sums(const float* logits, std::size_t n_blocks, float max, float scale, float* sums) {
  for (std::size_t i = 0; i < n_blocks; ++i, logits += kBlock) {
    Lanes total = {};
    for (std::size_t k = 0; k < kBlock; k += kLanes) {
      Lanes x, weight;
      std::memcpy(&x, logits + k, sizeof(x));
      exp_to<Lanes, IntLanes>((x - max) * scale, weight);
      total += weight;
    }
    float sum = 0;
    for (std::size_t j = 0; j < kLanes; ++j) sum += total[j];
    sums[i] = sum;
  }
}

COPPICE_ROW_LOOP void weigh_candidates(Candidate* candidates, std::size_t n, float max, float scale) {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const std::size_t width = std::min(kLanes, n - i);
    Lanes x = {}, weight;
    for (std::size_t j = 0; j < width; ++j) x[j] = candidates[i + j].logit;
    exp_to<Lanes, IntLanes>((x - max) * scale, weight);
    for (std::size_t j = 0; j < width; ++j) candidates[i + j].weight = weight[j];
  }
}

}  // namespace

void weigh(std::span<Candidate> candidates, float max, float scale) {
  weigh_candidates(candidates.data(), candidates.size(), max, scale);
}

float exp_negative(float x) {
  return weight_of(x, 0, 1);
}

void LogitScan::scan(std::span<const float> logits) {
  logits_ = logits;
  const std::size_t n_whole = logits.size() / kBlock;
  maxima_.resize((logits.size() + kBlock - 1) / kBlock);
  block_maxima(logits.data(), n_whole, maxima_.data());
  if (n_whole < maxima_.size()) {
    maxima_.back() = kNone;
    for (const float x : block(n_whole)) maxima_.back() = x > maxima_.back() ? x : maxima_.back();
  }
  max_ = std::ranges::max(maxima_);
}

kv::Token LogitScan::argmax() const {
  if (max_ == kNone) return 0;
  const auto i = static_cast<std::size_t>(std::ranges::find(maxima_, max_) - maxima_.begin());
  const std::span<const float> values = block(i);
  return static_cast<kv::Token>(i * kBlock) + static_cast<kv::Token>(std::ranges::find(values, max_) - values.begin());
}

double LogitScan::sum_exp(float inv_temperature) {
  COPPICE_ASSERT(std::isfinite(max_));
  inv_temperature_ = inv_temperature;
  const std::size_t n_whole = logits_.size() / kBlock;
  sums_.resize(maxima_.size());
  block_sums(logits_.data(), n_whole, max_, inv_temperature, sums_.data());
  if (n_whole < sums_.size()) {
    sums_.back() = 0;
    for (const float x : block(n_whole)) sums_.back() += weight_of(x, max_, inv_temperature);
  }
  double total = 0;
  for (const float sum : sums_) total += static_cast<double>(sum);
  return total;
}

kv::Token LogitScan::draw(double target) const {
  std::size_t i = 0;
  double before = 0;
  while (i + 1 < sums_.size() && before + sums_[i] <= target) before += sums_[i++];
  // A block's sum was added up in another order: if rounding carries the target past its end, the last token
  // that has any weight is the one.
  const std::span<const float> values = block(i);
  std::size_t last = values.size();
  for (std::size_t j = 0; j < values.size(); ++j) {
    const float weight = weight_of(values[j], max_, inv_temperature_);
    if (weight == 0) continue;
    last = j;
    before += weight;
    if (before > target) break;
  }
  if (last == values.size()) return argmax();
  return static_cast<kv::Token>(i * kBlock + last);
}

float LogitScan::bound_of_kth(std::size_t k) {
  COPPICE_ASSERT(k > 0);
  if (k > maxima_.size()) return std::numeric_limits<float>::lowest();
  // k blocks have a maximum of at least this: so have k logits.
  scratch_ = maxima_;
  const auto kth = scratch_.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::ranges::nth_element(scratch_, kth, std::greater<>());
  return std::max(*kth, std::numeric_limits<float>::lowest());
}

void LogitScan::gather(float threshold, std::vector<Candidate>& out) const {
  out.clear();
  for (std::size_t i = 0; i < maxima_.size(); ++i) {
    if (!(maxima_[i] >= threshold)) continue;
    // Without branches: in a flat distribution nobody can foretell which logits are in.
    Candidate found[kBlock];
    std::size_t n = 0;
    const std::span<const float> values = block(i);
    for (std::size_t j = 0; j < values.size(); ++j) {
      found[n] = {static_cast<kv::Token>(i * kBlock + j), values[j], 0};
      n += values[j] >= threshold ? 1 : 0;
    }
    out.insert(out.end(), found, found + n);
  }
}

std::int32_t LogitScan::rank(kv::Token token) const {
  const auto own = static_cast<std::size_t>(token);
  const float logit = logits_[own];
  std::int32_t rank = 1;
  for (std::size_t i = 0; i < maxima_.size(); ++i) {
    if (!(maxima_[i] >= logit)) continue;
    const std::span<const float> values = block(i);
    const std::size_t n_before = own > i * kBlock ? std::min(own - i * kBlock, values.size()) : 0;
    // Among equals the lower id is the likelier one.
    for (const float x : values.first(n_before)) rank += x >= logit ? 1 : 0;
    for (const float x : values.subspan(n_before)) rank += x > logit ? 1 : 0;
  }
  return rank;
}

void LogitScan::top(std::size_t k, std::vector<Candidate>& out) {
  gather(bound_of_kth(k), out);
  const std::size_t n = std::min(k, out.size());
  std::ranges::partial_sort(out, out.begin() + static_cast<std::ptrdiff_t>(n),
                            [](const Candidate& a, const Candidate& b) { return likelier(a, b); });
  out.resize(n);
}

}  // namespace coppice::sampling
