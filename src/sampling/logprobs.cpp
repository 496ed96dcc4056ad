#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace coppice::sampling {

LogprobEntry LogprobReader::read(std::span<const float> logits, kv::Token chosen, int n_top,
                                 const text::Vocabulary& vocabulary) {
  const std::span<const float> row = logits.first(std::min(logits.size(), static_cast<std::size_t>(vocabulary.size())));
  scan_.scan(row);
  const double log_sum = static_cast<double>(scan_.max()) + std::log(scan_.sum_exp(1));
  const auto entry_of = [&](kv::Token token) {
    const double logit = static_cast<double>(row[static_cast<std::size_t>(token)]);
    return TokenLogprob{token, vocabulary.piece(token, true), static_cast<float>(logit - log_sum)};
  };
  LogprobEntry entry{entry_of(chosen), {}};
  if (n_top > 0) {
    scan_.top(static_cast<std::size_t>(n_top), top_);
    entry.top.reserve(top_.size());
    for (const Candidate& c : top_) entry.top.push_back(entry_of(c.token));
  }
  return entry;
}

LogprobEntry read_drawn(std::span<const Candidate> drawable, kv::Token chosen, int n_top,
                        const text::Vocabulary& vocabulary) {
  double sum = 0;
  for (const Candidate& c : drawable) sum += static_cast<double>(c.weight);
  const auto entry_of = [&](const Candidate& c) {
    return TokenLogprob{c.token, vocabulary.piece(c.token, true),
                        static_cast<float>(std::log(static_cast<double>(c.weight) / sum))};
  };
  LogprobEntry entry{entry_of(*std::ranges::find(drawable, chosen, &Candidate::token)), {}};
  for (const Candidate& c : drawable) {
    if (std::cmp_equal(entry.top.size(), n_top) || c.weight <= 0) break;  // weights fall
    entry.top.push_back(entry_of(c));
  }
  return entry;
}

PromptToken VocabularyScorer::score(std::span<const float> logits, kv::Token next, int n_top) {
  PromptToken token{.entry = reader_.read(logits, next, n_top, *vocabulary_)};
  token.rank = reader_.rank(next);
  return token;
}

PromptToken VocabularyScorer::name(kv::Token token) {
  return {.entry = {.chosen = {.token = token, .bytes = vocabulary_->piece(token, true)}}};
}

}  // namespace coppice::sampling
