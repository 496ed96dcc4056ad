#include "support/cached_executor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace coppice::test {

CachedExecutor::CachedExecutor(executor::Executor& executor)
    : executor_(executor),
      cache_({.block_size = executor.info().block_size,
              .num_blocks = executor.info().num_blocks,
              .bytes_per_block = executor.info().bytes_per_block,
              .groups = executor.info().groups,
              .model = executor.info().model_digest,
              .layout = executor.info().layout}) {}

kv::SeqId CachedExecutor::start(std::span<const kv::Token> prompt, int chunk, std::vector<Row>* rows) {
  const kv::SeqId seq = cache_.admit({.prompt = prompt}).value();
  prompt = prompt.subspan(static_cast<std::size_t>(cache_.lengths(seq).cached_len));
  while (!prompt.empty()) {
    const auto n = std::min(prompt.size(), static_cast<std::size_t>(chunk));
    for (Row& row : step({{seq, prompt.first(n)}})) {
      if (rows) rows->push_back(std::move(row));
    }
    prompt = prompt.subspan(n);
  }
  return seq;
}

std::vector<Row> CachedExecutor::step(const std::vector<Part>& parts) {
  executor::Batch b;
  for (const Part& part : parts)
    EXPECT_TRUE(cache_.extend(part.seq, static_cast<std::int32_t>(part.tokens.size()), b.block_ops).has_value());
  for (const Part& part : parts) {
    const std::int32_t first = cache_.lengths(part.seq).computed_len;
    executor::BatchSequence s{.n_rows = static_cast<int>(part.tokens.size()), .first_position = first};
    for (int g = 0; g < static_cast<int>(executor_.info().groups.size()); ++g) {
      s.tables.push_back(cache_.table(part.seq, g));
    }
    b.sequences.push_back(std::move(s));
    for (const kv::Token t : part.tokens) {
      b.logit_rows.push_back(b.n_rows());
      b.rows.push_back(t);
    }
  }
  const executor::Logits logits = executor_.forward(b).logits;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < b.logit_rows.size(); ++i) rows.emplace_back(logits.row(i).begin(), logits.row(i).end());
  for (const Part& part : parts) cache_.publish(part.seq, part.tokens);
  EXPECT_EQ(cache_.check_integrity(), "");
  return rows;
}

}  // namespace coppice::test
