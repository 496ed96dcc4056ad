#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "sampling/philox.h"

namespace coppice::sampling {

namespace {

/// Thresholds on logits are lower bounds of thresholds on weights: room for the rounding of either.
constexpr float kSlack = 1e-3F;

double sum_of(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += static_cast<double>(c.weight);
  return sum;
}

struct Workspace {
  LogitScan scan;             ///< of the row in hand
  std::vector<float> masked;  ///< a copy of it
  std::vector<Candidate> candidates, border, next;
  std::vector<float> row;  ///< of allowed tokens only
};
thread_local Workspace work;

/// out: the row, -inf where the mask has a 0 or ends.
void copy_allowed(std::span<const float> row, std::span<const std::int32_t> mask, std::vector<float>& out) {
  out.assign(row.size(), kNone);
  const std::size_t n_words = std::min(mask.size(), (row.size() + 31) / 32);
  for (std::size_t i = 0; i < n_words; ++i) {
    // Most words of most masks are 0.
    for (auto bits = static_cast<std::uint32_t>(mask[i]); bits != 0; bits &= bits - 1) {
      const std::size_t token = i * 32 + static_cast<std::size_t>(std::countr_zero(bits));
      if (token < row.size()) out[token] = row[token];
    }
  }
}

bool before(const Candidate& a, const Candidate& b) {
  return likelier(a, b);
}

/// Of work.candidates, the fewest likeliest whose measures reach `missing`, the one that crosses it included. Sorts
/// only around the border: finds it by a histogram over the logits, then by one over the border's bucket, and so on.
template <class Measure>
void keep_likeliest(double missing, Measure measure) {
  constexpr std::size_t kFew = 64;
  constexpr std::int32_t kBuckets = 256;
  std::vector<Candidate>&kept = work.candidates, &border = work.border, &next = work.next;
  border.swap(kept);
  kept.clear();
  while (border.size() > kFew) {
    float top = border.front().logit, least = top;
    for (const Candidate& c : border) {
      top = std::max(top, c.logit);
      least = std::min(least, c.logit);
    }
    const float buckets_per_logit = static_cast<float>(kBuckets - 1) / (top - least);
    if (!std::isfinite(buckets_per_logit) || !(buckets_per_logit > 0)) break;  // all equal, or absurd: sort
    const auto bucket_of = [&](const Candidate& c) {
      return static_cast<std::int32_t>((top - c.logit) * buckets_per_logit);
    };
    double measures[kBuckets + 1] = {};  // rounding may reach one further
    for (const Candidate& c : border) measures[bucket_of(c)] += measure(c);
    std::int32_t bucket = 0;
    while (bucket < kBuckets && measures[bucket] < missing) missing -= measures[bucket++];
    // Without branches: each candidate is written to both lists, and the one that wants it moves its end.
    std::size_t n_kept = kept.size(), n_next = 0;
    kept.resize(n_kept + border.size());
    next.resize(border.size());
    for (const Candidate& c : border) {
      const std::int32_t own = bucket_of(c);
      kept[n_kept] = next[n_next] = c;
      n_kept += own < bucket ? 1 : 0;
      n_next += own == bucket ? 1 : 0;
    }
    kept.resize(n_kept);
    next.resize(n_next);
    border.swap(next);
  }
  std::ranges::sort(border, before);
  for (const Candidate& c : border) {
    if (missing <= 0 && !kept.empty()) break;
    missing -= measure(c);
    kept.push_back(c);
  }
}

}  // namespace

PromptTokens prompt_tokens(std::span<const kv::Token> prompt) {
  PromptTokens tokens(prompt.begin(), prompt.end());
  std::ranges::sort(tokens);
  tokens.erase(std::ranges::unique(tokens).begin(), tokens.end());
  tokens.shrink_to_fit();
  return tokens;
}

Sampler::Sampler(std::shared_ptr<const SamplingParams> params, std::uint64_t seed,
                 std::shared_ptr<const PromptTokens> prompt, std::span<const kv::Token> banned, std::int32_t n_vocab,
                 std::span<const kv::Token> ends)
    : temperature_(params->temperature),
      top_k_(params->top_k > 0 ? static_cast<std::size_t>(params->top_k) : 0),
      top_p_(params->top_p),
      min_p_(params->min_p),
      repeat_(params->repeat_penalty),
      frequency_(params->frequency_penalty),
      presence_(params->presence_penalty),
      n_vocab_(n_vocab),
      params_(std::move(params)),
      prompt_(repeat_ == 1 ? nullptr : std::move(prompt)),
      banned_(banned.begin(), banned.end()),
      seed_(seed) {
  if (params_->min_tokens > 0) {
    ends_.assign(ends.begin(), ends.end());
    ends_.insert(ends_.end(), params_->stop_tokens.begin(), params_->stop_tokens.end());
  }
  for (const auto& word : params_->bad_words) max_tail_ = std::max(max_tail_, word.size() - 1);
}

std::optional<kv::Token> Sampler::pick(std::span<float> logits, std::span<const std::int32_t> mask) {
  if (logits.empty()) throw std::invalid_argument("no logits");
  const std::span<float> row = visible(logits, mask);
  apply_edits(row);
  work.scan.scan(row);
  const bool possible = work.scan.max() != kNone;
  const kv::Token token = !possible ? -1 : greedy() ? work.scan.argmax() : draw();
  undo_edits(row);
  if (!possible) return std::nullopt;
  take(token);
  return token;
}

void Sampler::take(kv::Token token) {
  ++n_drawn_;
  if (max_tail_ > 0) {
    if (tail_.size() == max_tail_) tail_.erase(tail_.begin());
    tail_.push_back(token);
  }
  if (counts()) count(token);
}

SamplerSpec Sampler::spec(std::span<const std::int32_t> mask) const {
  SamplerSpec spec{.temperature = temperature_,
                   .top_k = static_cast<std::int32_t>(top_k_),
                   .top_p = top_p_,
                   .min_p = min_p_,
                   .repeat = repeat_,
                   .frequency = frequency_,
                   .presence = presence_,
                   .n_vocab = n_vocab_,
                   .mask = {mask.begin(), mask.end()},
                   .seed = seed_,
                   .counter = static_cast<std::uint64_t>(n_drawn_)};
  if (restricted()) {
    std::vector<std::int32_t> allowed((static_cast<std::size_t>(n_vocab_) + 31) / 32);
    for (const kv::Token token : params_->allowed_tokens) {
      if (token < 0 || token >= n_vocab_) continue;
      const auto word = static_cast<std::size_t>(token) / 32;
      const auto open = mask.empty() ? ~0U : word < mask.size() ? static_cast<std::uint32_t>(mask[word]) : 0U;
      allowed[word] |= static_cast<std::int32_t>(open & 1U << token % 32);
    }
    spec.mask = std::move(allowed);
  }
  const auto add = [&](kv::Token token, float bias) {
    if (token >= 0 && token < n_vocab_) spec.biases.push_back({token, bias});
  };
  for (const auto& [token, bias] : params_->logit_bias) add(token, bias);
  for_each_barred([&](kv::Token token) { add(token, kNone); });
  // Of a token's biases the lowest comes first: one that bars it is alone.
  std::ranges::sort(spec.biases, {}, [](const TokenBias& b) { return std::pair(b.token, b.bias); });
  const auto twice = std::ranges::unique(spec.biases, {}, &TokenBias::token);
  spec.biases.erase(twice.begin(), twice.end());
  if (!counts()) return spec;
  for (const auto& [token, drawn] : drawn_) spec.counts.push_back({token, drawn.times, drawn.in_prompt});
  if (prompt_) {
    for (const kv::Token token : *prompt_) {
      if (!drawn_.contains(token)) spec.counts.push_back({token, 0, true});
    }
  }
  return spec;
}

std::span<float> Sampler::visible(std::span<float> logits, std::span<const std::int32_t> mask) {
  const std::span<float> row = logits.first(std::min(logits.size(), static_cast<std::size_t>(n_vocab_)));
  if (mask.empty()) return allowed(row);
  copy_allowed(row, mask, work.masked);
  return allowed(work.masked);
}

std::vector<Candidate> Sampler::distribution(std::span<float> logits, std::span<const std::int32_t> mask) {
  const std::span<float> row = visible(logits, mask);
  apply_edits(row);
  work.scan.scan(row);
  if (work.scan.max() == kNone) {
    work.candidates.clear();
  } else if (greedy() || !std::isfinite(work.scan.max())) {
    const kv::Token token = work.scan.argmax();
    work.candidates.assign(1, {token, row[static_cast<std::size_t>(token)], 1});
  } else {
    filter();
  }
  undo_edits(row);
  std::ranges::sort(work.candidates, before);
  return work.candidates;
}

void Sampler::count(kv::Token token) {
  const auto [it, fresh] = drawn_.try_emplace(token);
  if (fresh) it->second.in_prompt = prompt_ && std::ranges::binary_search(*prompt_, token);
  ++it->second.times;
}

std::span<float> Sampler::allowed(std::span<float> logits) {
  if (!restricted()) return logits;
  work.row.assign(logits.size(), kNone);
  for (const kv::Token token : params_->allowed_tokens) {
    const auto at = static_cast<std::size_t>(token);
    if (at < logits.size()) work.row[at] = logits[at];
  }
  return work.row;
}

template <class F>
void Sampler::for_each_barred(F&& f) const {
  for (const auto& word : params_->bad_words) {
    const auto beginning = std::span(word).first(word.size() - 1);
    if (beginning.size() > tail_.size()) continue;
    if (std::ranges::equal(beginning, std::span(tail_).last(beginning.size()))) f(word.back());
  }
  for (const kv::Token token : banned_) f(token);
  if (n_drawn_ >= params_->min_tokens) return;
  for (const kv::Token token : ends_) f(token);
}

/// Only tokens that the request names or that were seen are touched: no pass over the vocabulary.
void Sampler::apply_edits(std::span<float> logits) {
  edits_.clear();
  const auto inside = [&](kv::Token token) { return token >= 0 && static_cast<std::size_t>(token) < logits.size(); };
  for (const auto& [token, bias] : params_->logit_bias) {
    if (inside(token)) set(logits, token, logits[static_cast<std::size_t>(token)] + bias);
  }
  const auto repeated = [&](kv::Token token) {
    const float logit = logits[static_cast<std::size_t>(token)];
    return logit > 0 ? logit / repeat_ : logit * repeat_;
  };
  if (prompt_) {
    for (const kv::Token token : *prompt_) {
      if (inside(token)) set(logits, token, repeated(token));
    }
  }
  for (const auto& [token, drawn] : drawn_) {
    if (!inside(token)) continue;
    const float logit = drawn.in_prompt ? logits[static_cast<std::size_t>(token)] : repeated(token);
    set(logits, token, logit - (static_cast<float>(drawn.times) * frequency_ + presence_));
  }
  for_each_barred([&](kv::Token token) {
    if (inside(token)) set(logits, token, kNone);
  });
}

void Sampler::set(std::span<float> logits, kv::Token token, float value) {
  float& logit = logits[static_cast<std::size_t>(token)];
  edits_.push_back({token, logit});
  logit = value;
}

void Sampler::undo_edits(std::span<float> logits) {
  // Newest first: a token edited twice gets its first value back.
  for (auto edit = edits_.rbegin(); edit != edits_.rend(); ++edit) {
    logits[static_cast<std::size_t>(edit->token)] = edit->raw;
  }
}

double Sampler::uniform() {
  return static_cast<double>(philox_64(seed_, static_cast<std::uint64_t>(n_drawn_)) >> 11) * 0x1p-53;
}

kv::Token Sampler::draw() {
  const double u = uniform();
  if (!std::isfinite(work.scan.max())) return work.scan.argmax();
  if (!filtered()) return work.scan.draw(u * work.scan.sum_exp(1 / temperature_));
  // The likeliest first, as a GPU has them: so a number means the same token there.
  keep_likeliest(u * filter(), [](const Candidate& c) { return static_cast<double>(c.weight); });
  return work.candidates.back().token;
}

double Sampler::filter() {
  const float scale = 1 / temperature_;
  // A threshold below all that the first active filter keeps makes the list short before anything is sorted.
  float threshold = std::numeric_limits<float>::lowest();
  double total = 0;
  if (top_k_ > 0) {
    threshold = work.scan.bound_of_kth(top_k_);
  } else if (top_p_ < 1) {
    // All tokens lighter than this share of what top-p cuts off, together, are lighter than what it cuts off.
    total = work.scan.sum_exp(scale);
    const double lightest = (1 - static_cast<double>(top_p_)) * total / static_cast<double>(n_vocab_);
    threshold = work.scan.max() + temperature_ * (static_cast<float>(std::log(lightest)) - kSlack);
  } else if (min_p_ > 0) {
    threshold = work.scan.max() + temperature_ * (std::log(min_p_) - kSlack);
  }
  work.scan.gather(std::max(threshold, std::numeric_limits<float>::lowest()), work.candidates);
  if (top_k_ > 0 && top_k_ < work.candidates.size()) {
    keep_likeliest(static_cast<double>(top_k_), [](const Candidate&) { return 1.0; });
  }
  weigh(work.candidates, work.scan.max(), scale);
  if (top_k_ > 0) total = sum_of(work.candidates);
  if (top_p_ < 1) {
    keep_likeliest(static_cast<double>(top_p_) * total,
                   [](const Candidate& c) { return static_cast<double>(c.weight); });
  }
  if (min_p_ > 0) std::erase_if(work.candidates, [this](const Candidate& c) { return c.weight < min_p_; });
  return sum_of(work.candidates);
}

}  // namespace coppice::sampling
