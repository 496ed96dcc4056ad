#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>

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

PromptToken VocabularyScorer::score(std::span<const float> logits, kv::Token next, int n_top) {
  PromptToken token{.entry = reader_.read(logits, next, n_top, *vocabulary_)};
  token.rank = reader_.rank(next);
  return token;
}

PromptToken VocabularyScorer::name(kv::Token token) {
  return {.entry = {.chosen = {.token = token, .bytes = vocabulary_->piece(token, true)}}};
}

}  // namespace coppice::sampling
