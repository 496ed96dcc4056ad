#include "engine/row_reader.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "check/assert.h"
#include "engine/stopwatch.h"

namespace coppice::engine {

void RowReader::read(const StepPart& part, const Rows& rows, Clock::time_point now) {
  COPPICE_ASSERT(part.sequence != nullptr);
  now_ = now;
  Sequence& sequence = *part.sequence;
  std::size_t row = 0;
  for (const WantedRows& wanted : part.wanted) {
    const auto n = static_cast<std::size_t>(wanted.n);
    switch (wanted.purpose) {
      case Purpose::kScore:
        score(*sequence.request, wanted.n, rows.logits.rows(row, n));
        row += n;
        break;
      case Purpose::kPool:
        pool(*sequence.request, wanted.n, rows.hidden);
        if (part.completes) return end_prompt(sequence, {});
        break;
      case Purpose::kSample:
        if (wanted.draw < 0) return end_prompt(sequence, rows.logits.row(row));
        return add_token(sequence, [&](sampling::Generation& generation) { return generation.take(rows.token, {}); });
      case Purpose::kVerify:
        COPPICE_ASSERT(wanted.purpose != Purpose::kVerify && "nobody plans such rows yet");
    }
  }
}

void RowReader::end_prompt(Sequence& sequence, std::span<float> logits) {
  Kept kept;
  sequence.n_samples > 1 ? sample_siblings(sequence, logits) : sample_one(sequence, logits, kept);
}

void RowReader::resume(Sequence& sequence, Clock::time_point now) {
  if (!sequence.logits || !sequence.request->request.samples[static_cast<std::size_t>(sequence.sample)]->ready())
    return;
  now_ = now;
  row_ = *sequence.logits;  // siblings may wait with the same ones
  sequence.logits.reset();
  add_token(sequence, [&](sampling::Generation& generation) { return generation.next(row_); });
}

void RowReader::score(OpenRequest& open, int n, const executor::Logits& logits) {
  const PromptScoring& asked = *open.request.scoring;
  std::vector<sampling::PromptToken> scored;
  {
    const Stopwatch stopwatch(figures_.sampling_seconds);
    const auto first = static_cast<std::size_t>(open.next_scored);
    const std::vector<kv::Token> next = open.request.prompt.view().subspan(first, static_cast<std::size_t>(n)).tokens();
    COPPICE_ASSERT(std::cmp_equal(next.size(), n));
    for (std::size_t i = 0; i < next.size(); ++i)
      scored.push_back(asked.scorer->score(logits.row(i), next[i], asked.n_top));
  }
  open.next_scored = open.request.prompt.view().token_from(open.next_scored + n);
  requests_.add_prompt(open, std::move(scored));
}

void RowReader::pool(OpenRequest& open, int n, const executor::HiddenStates& hidden) {
  std::vector<double>& sum = open.request.pooling->sum;
  const Stopwatch stopwatch(figures_.sampling_seconds);
  for (std::size_t i = 0; std::cmp_less(i, n); ++i)
    std::ranges::transform(sum, hidden.row(i), sum.begin(), std::plus<>());
  open.next_pooled += n;
  if (open.next_pooled < open.usage.prompt_tokens) return;
  const double weight = open.request.pooling->kind == Pooling::kMean ? open.usage.prompt_tokens : 1;
  std::vector<float> embedding;
  embedding.reserve(sum.size());
  for (const double x : sum) embedding.push_back(static_cast<float>(x / weight));
  requests_.add_embedding(open, std::move(embedding));
}

void RowReader::sample_siblings(Sequence& first, std::span<const float> logits) {
  OpenRequest& open = *first.request;
  const std::size_t own = open.sequences.size() - 1;  // `first` is the last, and the only live one so far
  while (first.n_samples > 1) {
    auto& sibling = *open.sequences.emplace_back(std::make_unique<Sequence>());
    sibling.request = &open;
    sibling.sample = static_cast<int>(open.sequences.size() - 1 - own);
    scheduler_.part(first, sibling);
  }
  Kept kept;
  for (std::size_t i = own; i < open.sequences.size(); ++i) {
    row_.assign(logits.begin(), logits.end());  // next() may change its row in place
    sample_one(*open.sequences[i], row_, kept);
  }
}

void RowReader::sample_one(Sequence& sequence, std::span<float> logits, Kept& kept) {
  if (sequence.request->request.max_tokens == 0) return requests_.add(sequence, {}, sampling::Finish::kLength);
  if (!sequence.request->request.samples[static_cast<std::size_t>(sequence.sample)]->ready()) {
    if (!kept) kept = std::make_shared<const std::vector<float>>(logits.begin(), logits.end());
    sequence.logits = kept;
    return;
  }
  add_token(sequence, [&](sampling::Generation& generation) { return generation.next(logits); });
}

template <class Next>
void RowReader::add_token(Sequence& sequence, Next&& next) {
  OpenRequest& open = *sequence.request;
  sampling::Piece piece = [&] {
    const Stopwatch stopwatch(figures_.sampling_seconds);
    return next(*open.request.samples[static_cast<std::size_t>(sequence.sample)]);  // may throw: no token can come
  }();
  if (!sequence.out.empty()) {
    figures_.token_gap_seconds.add(std::chrono::duration<double>(now_ - sequence.last_token).count());
  }
  sequence.last_token = now_;
  if (piece.token >= 0) sequence.out.push_back(piece.token);

  const bool full = scheduler_.is_full(open, static_cast<std::int32_t>(sequence.out.size()));
  requests_.add(sequence, std::move(piece), full ? std::optional(sampling::Finish::kLength) : std::nullopt);
}

}  // namespace coppice::engine
