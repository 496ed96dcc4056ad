// What a sampler must draw from, computed plainly: what Sampler is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "kv/types.h"
#include "sampling/params.h"

namespace coppice::sampling {

using Distribution = std::map<kv::Token, double>;

struct Reference {
  Distribution p;
  bool on_the_edge = false;  ///< a filter's border is nearer than rounding: either answer is right
};

/// As the documentation says it, in double, on everything at once.
inline Reference reference(std::vector<float> logits, const SamplingParams& params,
                           const std::vector<kv::Token>& prompt, const std::vector<kv::Token>& generated) {
  std::map<kv::Token, int> counts;
  for (const kv::Token t : generated) ++counts[t];
  struct Entry {
    kv::Token token;
    double logit, p;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<kv::Token>(i);
    float x = logits[i];
    if (params.logit_bias.contains(token)) x += params.logit_bias.at(token);
    const bool seen = std::ranges::count(prompt, token) + counts[token] > 0;
    if (seen) x = x > 0 ? x / params.repeat_penalty : x * params.repeat_penalty;
    if (counts[token] > 0) {
      x -= static_cast<float>(counts[token]) * params.frequency_penalty + params.presence_penalty;
    }
    entries.push_back({token, static_cast<double>(x) / static_cast<double>(params.temperature), 0});
  }
  Reference result;
  const auto softmax = [&] {
    double max = -1e300, sum = 0;
    for (const Entry& e : entries) max = std::max(max, e.logit);
    for (Entry& e : entries) sum += e.p = std::exp(e.logit - max);
    for (Entry& e : entries) e.p /= sum;
  };
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(-e.logit, e.token); });
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < entries.size()) {
    entries.resize(static_cast<std::size_t>(params.top_k));
  }
  softmax();
  if (params.top_p < 1) {
    double sum = 0;
    std::size_t n = 0;
    while (n < entries.size() && sum < static_cast<double>(params.top_p)) {
      sum += entries[n++].p;
      if (std::abs(sum - static_cast<double>(params.top_p)) < 1e-5) result.on_the_edge = true;
    }
    entries.resize(n);
    softmax();
  }
  if (params.min_p > 0) {
    const double limit = entries[0].p * static_cast<double>(params.min_p);
    for (const Entry& e : entries) {
      if (std::abs(e.p / limit - 1) < 1e-4) result.on_the_edge = true;
    }
    std::erase_if(entries, [&](const Entry& e) { return e.p < limit; });
    softmax();
  }
  for (const Entry& e : entries) result.p[e.token] = e.p;
  return result;
}

}  // namespace coppice::sampling
