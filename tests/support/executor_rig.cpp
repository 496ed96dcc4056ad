#include "support/executor_rig.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <utility>

namespace coppice::test {

ExecutorRig::ExecutorRig(executor::Executor& executor, std::uint32_t shuffle_seed)
    : executor_(executor), block_size_(executor.info().block_size) {
  for (kv::BlockId id = executor.info().num_blocks - 1; id >= 1; --id) free_.push_back(id);
  if (shuffle_seed != 0) {
    std::mt19937 random(shuffle_seed);
    std::ranges::shuffle(free_, random);
  }
}

kv::BlockId ExecutorRig::take() {
  if (free_.empty()) throw std::runtime_error("the rig's pool is empty");
  const kv::BlockId id = free_.back();
  free_.pop_back();
  return id;
}

int ExecutorRig::state_pages() const {
  return executor_.info().groups.back().state_pages;
}

void ExecutorRig::add_states(RigSequence& s, executor::BatchSequence& part) {
  if (s.len > 0) part.state_in = s.states.at(s.len);
  const int end = s.len + part.n_rows;
  if (part.n_rows == 1 && s.writes_over) {
    auto node = s.states.extract(s.len);
    node.key() = end;
    s.states.insert(std::move(node));
    part.state_in = s.states.at(end);
  } else {
    std::vector<kv::BlockId>& pages = s.states[end];
    for (int i = 0; i < state_pages(); ++i) pages.push_back(take());
  }
  part.state_out = s.states.at(end);
  s.writes_over = part.n_rows == 1;
}

std::vector<std::vector<kv::BlockId>*> ExecutorRig::tables(RigSequence& sequence) const {
  sequence.more.resize(executor_.info().groups.size() - (state_pages() > 0 ? 2 : 1));
  std::vector<std::vector<kv::BlockId>*> all = {&sequence.blocks};
  for (auto& blocks : sequence.more) all.push_back(&blocks);
  return all;
}

RigSequence ExecutorRig::fork(const RigSequence& from, int n) {
  RigSequence s = from;
  s.len = n;
  s.writes_over = false;
  s.states.erase(s.states.upper_bound(n), s.states.end());
  if (state_pages() > 0 && !s.states.contains(n)) throw std::runtime_error("no state at the fork");
  for (int group = 0; std::vector<kv::BlockId> * blocks : tables(s)) {
    blocks->resize(static_cast<std::size_t>((n + block_size_ - 1) / block_size_));
    if (const int filled = n % block_size_; filled > 0) {
      copies_.push_back({.src = blocks->back(), .dst = take(), .n_slots = filled, .group = group});
      blocks->back() = copies_.back().dst;
    }
    ++group;
  }
  return s;
}

executor::Batch ExecutorRig::batch(std::span<const RigPart> parts) {
  executor::Batch b;
  b.block_ops = std::exchange(copies_, {});
  for (const RigPart& part : parts) {
    RigSequence& s = *part.sequence;
    executor::BatchSequence bs;
    bs.n_rows = static_cast<int>(part.tokens.size());
    bs.first_position = s.len;
    if (state_pages() > 0) add_states(s, bs);
    for (const kv::Token t : part.tokens) {
      for (std::vector<kv::BlockId>* blocks : tables(s)) {
        if (s.len % block_size_ == 0) blocks->push_back(take());
      }
      b.rows.push_back(t);
      ++s.len;
      if (part.want == Want::kAll) b.logit_rows.push_back(b.n_rows() - 1);
    }
    if (part.want == Want::kLast) b.logit_rows.push_back(b.n_rows() - 1);
    for (const std::vector<kv::BlockId>* blocks : tables(s)) bs.tables.push_back({*blocks, block_size_});
    b.sequences.push_back(std::move(bs));
  }
  return b;
}

std::vector<Row> ExecutorRig::run(const executor::Batch& b) {
  const executor::Logits logits = executor_.forward(b).logits;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < b.logit_rows.size(); ++i) rows.emplace_back(logits.row(i).begin(), logits.row(i).end());
  return rows;
}

std::vector<Row> ExecutorRig::step(std::span<const RigPart> parts) {
  return run(batch(parts));
}

std::vector<Row> ExecutorRig::feed(RigSequence& sequence, std::span<const kv::Token> tokens, int chunk, Want want) {
  std::vector<Row> rows;
  while (!tokens.empty()) {
    const auto n = std::min(tokens.size(), static_cast<std::size_t>(chunk));
    const bool last = n == tokens.size();
    const Want now = want == Want::kLast && !last ? Want::kNone : want;
    for (Row& row : step({&sequence, tokens.first(n), now})) rows.push_back(std::move(row));
    tokens = tokens.subspan(n);
  }
  return rows;
}

double relative_rms(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) throw std::runtime_error("rows of different length");
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = double{a[i]} - double{b[i]};
    difference += d * d;
    size += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference / size);
}

kv::Token argmax(std::span<const float> row) {
  return static_cast<kv::Token>(std::ranges::max_element(row) - row.begin());
}

}  // namespace coppice::test
