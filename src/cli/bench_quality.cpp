#include "cli/bench_quality.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace coppice::cli {
namespace {

/// A window's way through one executor: its blocks, first to last, in every group.
class Reader {
 public:
  Reader(executor::Executor& executor, int window) : executor_(executor) {
    const executor::ExecutorInfo& info = executor.info();
    const int blocks = (window + info.block_size - 1) / info.block_size;
    kv::BlockId next = kv::kNullBlock + 1;
    for (std::size_t g = 0; g < info.groups.size(); ++g) {
      auto& table = tables_.emplace_back();
      for (int i = 0; i < blocks; ++i) table.push_back(next++);
    }
    if (next > info.num_blocks) throw std::runtime_error("the KV pool does not hold one window of the text");
  }

  /// Logits of all the rows, until the next call.
  executor::Logits read(std::span<const kv::Token> tokens, std::int32_t first_position) {
    const int block_size = executor_.info().block_size;
    executor::Batch batch;
    batch.rows.assign(tokens.begin(), tokens.end());
    for (int i = 0; i < batch.n_rows(); ++i) batch.logit_rows.push_back(i);
    executor::BatchSequence sequence{.n_rows = batch.n_rows(), .first_position = first_position};
    const int covered = first_position + batch.n_rows();
    for (const auto& table : tables_) {
      const auto entries = static_cast<std::size_t>((covered + block_size - 1) / block_size);
      sequence.tables.push_back({std::span(table).first(entries), block_size});
    }
    batch.sequences.push_back(std::move(sequence));
    return executor_.forward(batch).logits;
  }

 private:
  executor::Executor& executor_;
  std::vector<std::vector<kv::BlockId>> tables_;
};

/// log(sum(exp(logits)))
double log_total(std::span<const float> logits) {
  const float max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float x : logits) sum += static_cast<double>(std::exp(x - max));
  return static_cast<double>(max) + std::log(sum);
}

/// Sums over predictions.
struct Totals {
  double loss_before = 0, loss = 0;
  std::int64_t same_top = 0;
  std::vector<double> kl;

  void add(std::span<const float> p, std::span<const float> q, kv::Token next) {
    const double p_total = log_total(p), q_total = log_total(q);
    double divergence = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double log_p = static_cast<double>(p[i]) - p_total;
      divergence +=
          static_cast<double>(std::exp(static_cast<float>(log_p))) * (log_p - (static_cast<double>(q[i]) - q_total));
    }
    kl.push_back(divergence);
    const auto at = static_cast<std::size_t>(next);
    loss_before += p_total - static_cast<double>(p[at]);
    loss += q_total - static_cast<double>(q[at]);
    same_top += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
  }
};

}  // namespace

Quality compare_quality(executor::Executor& reference, executor::Executor& tested, std::span<const kv::Token> text,
                        int window, int chunk) {
  Reader reader(reference, window), tested_reader(tested, window);
  Totals totals;
  for (; std::ssize(text) >= window; text = text.subspan(static_cast<std::size_t>(window))) {
    for (int at = 0; at < window; at += chunk) {
      const int n = std::min(chunk, window - at);
      const auto tokens = text.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
      const executor::Logits p = reader.read(tokens, at), q = tested_reader.read(tokens, at);
      for (int i = 0; i < std::min(n, window - 1 - at); ++i) {
        const auto row = static_cast<std::size_t>(i);
        totals.add(p.row(row), q.row(row), text[static_cast<std::size_t>(at) + row + 1]);
      }
    }
  }
  if (totals.kl.empty()) throw std::runtime_error("the text is shorter than one window");
  const auto n = static_cast<double>(totals.kl.size());
  Quality quality{.predictions = std::ssize(totals.kl),
                  .perplexity_before = std::exp(totals.loss_before / n),
                  .perplexity = std::exp(totals.loss / n),
                  .same_top = static_cast<double>(totals.same_top) / n};
  for (const double kl : totals.kl) quality.kl_mean += kl / n;
  std::ranges::sort(totals.kl);
  quality.kl_p99 = totals.kl[static_cast<std::size_t>(0.99 * n)];
  return quality;
}

}  // namespace coppice::cli
