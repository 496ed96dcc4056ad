// What tests ask executors for: logits of prompts, of decodes one by one and of many at once, over shared and forked
// blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "support/executor_rig.h"

namespace coppice::test {

struct AnswersLoad {
  int longest = 300, decode_steps = 24, streams = 11;
  int chunk = 256;
};

/// The same for all executors of a model. shuffle: of the blocks (ExecutorRig).
inline std::vector<Row> answers(executor::Executor& e, std::uint32_t shuffle, const AnswersLoad& load = {}) {
  std::mt19937 random(7);
  ExecutorRig rig(e, shuffle);
  std::vector<Row> all;
  const auto keep = [&](std::vector<Row> rows) { std::ranges::move(rows, std::back_inserter(all)); };
  const auto tokens = [&](int n) {
    std::vector<kv::Token> some;
    for (int i = 0; i < n; ++i)
      some.push_back(static_cast<kv::Token>(random() % static_cast<unsigned>(e.info().n_vocab)));
    return some;
  };
  RigSequence trunk;
  keep(rig.feed(trunk, tokens(load.longest), load.chunk));
  for (int i = 0; i < load.decode_steps; ++i) keep(rig.step({&trunk, tokens(1), Want::kLast}));
  // Streams on the trunk, forked inside blocks, with prompts of their own; and one of them alone.
  std::vector<RigSequence> streams;
  for (int i = 0; i < load.streams; ++i) {
    streams.push_back(i % 4 == 3 ? RigSequence() : rig.fork(trunk, load.longest - 13 * i));
    keep(rig.feed(streams.back(), tokens(3 + 5 * i), load.chunk, Want::kAll));
  }
  for (int step = 0; step < load.decode_steps; ++step) {
    std::vector<std::vector<kv::Token>> next;
    std::vector<RigPart> parts;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      // Now and then a chunk of a prompt beside decodes, or some rows of each, as guesses are verified.
      const bool chunk = step % 8 == 5 && i == 2, verified = step % 8 == 3, nothing = step % 8 == 6 && i == 1;
      next.push_back(tokens(chunk ? 40 : verified ? 1 + static_cast<int>(i % 3) : 1));
      parts.push_back({&streams[i], {}, verified ? Want::kAll : nothing ? Want::kNone : Want::kLast});
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].tokens = next[i];
    keep(rig.step(parts));
  }
  return all;
}

}  // namespace coppice::test
