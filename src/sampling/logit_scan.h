// LogitScan: what sampling asks of a row of logits, in passes that vectorise without special instructions.
//
// A vocabulary has 32k to 256k logits, and 32 sequences ask for a token in every step. An array of (id, logit,
// probability) for all of them, sorted, would cost more than the model's attention. So the row is cut into blocks of
// kBlock logits, one pass takes each block's maximum, and later questions look only into the few blocks that matter.
//
// Not thread safe. Reads the row given to scan(), which must stay unchanged until the last question.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kv/types.h"

namespace coppice::sampling {

inline constexpr float kNone = -std::numeric_limits<float>::infinity();  ///< the logit of a token that cannot be drawn

struct Candidate {
  kv::Token token = 0;
  float logit = 0;
  float weight = 0;  ///< probability, not normalised

  /// Likelier first, lower id first among equals: a total order, so results don't depend on the order of work.
  friend bool likelier(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  }
};

class LogitScan {
 public:
  static constexpr std::size_t kBlock = 64;  ///< logits

  /// logits: [n_vocab], n_vocab > 0. NaN counts as -inf.
  void scan(std::span<const float> logits);

  float max() const { return max_; }
  /// The first index of the maximum; 0 if every logit is -inf.
  kv::Token argmax() const;

  /// The sum of exp((logit - max()) * inv_temperature) over the row; kept by block for draw().
  /// REQUIRES: max() is finite.
  double sum_exp(float inv_temperature);

  /// The token where the running sum of the weights of the last sum_exp() passes `target`.
  /// REQUIRES: 0 <= target < that sum.
  kv::Token draw(double target) const;

  /// A lower bound of the k-th largest logit; the lowest float if there is no cheap one. REQUIRES: k > 0.
  float bound_of_kth(std::size_t k);

  /// All tokens with logit >= threshold, ascending by id; weights unset. REQUIRES: threshold > -inf.
  void gather(float threshold, std::vector<Candidate>& out) const;

  /// 1 + how many tokens are likelier. REQUIRES: its logit is no NaN.
  std::int32_t rank(kv::Token token) const;

  /// The k likeliest (all, if fewer), likeliest first.
  void top(std::size_t k, std::vector<Candidate>& out);

 private:
  std::span<const float> block(std::size_t i) const {
    return logits_.subspan(i * kBlock, std::min(kBlock, logits_.size() - i * kBlock));
  }

  std::span<const float> logits_;
  std::vector<float> maxima_;   ///< [n_blocks]
  std::vector<float> sums_;     ///< [n_blocks], of the last sum_exp()
  std::vector<float> scratch_;  ///< bound_of_kth
  float max_ = 0;
  float inv_temperature_ = 1;
};

/// weight = exp((logit - max) * scale) of each. REQUIRES: no logit is above max.
void weigh(std::span<Candidate> candidates, float max, float scale);

/// exp(x) for x <= 0, relative error below 3e-7; 0 below -87. Plain arithmetic: it vectorises.
float exp_negative(float x);

}  // namespace coppice::sampling
