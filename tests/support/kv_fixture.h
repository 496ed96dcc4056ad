// KvTest: a fixture whose helpers let a cache test read as a story. Everything goes through a KvRig, so each
// step of a story is checked against the double and read back; a test adds what it is about.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <ostream>
#include <utility>

#include "support/kv_rig.h"
#include "support/kv_shapes.h"

namespace coppice::test {

using kv::SeqId;
using Tokens = std::vector<kv::Token>;

/// `n` different tokens: from, from + 1, ...
inline Tokens words(kv::Token from, int n) {
  Tokens tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

inline Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class KvTest : public testing::TestWithParam<Shape> {
 protected:
  int bs() const { return GetParam().block_size; }
  int n_groups() const { return static_cast<int>(kv::n_table_groups(make_groups(GetParam().groups, bs()))); }

  /// A pool of `blocks` per group.
  void open(int blocks, bool verify_each = true, bool share = true, bool keep_ends = false) {
    kv::CacheConfig config = make_config(GetParam(), blocks);
    config.share = share;
    config.keep_ends = keep_ends;
    rig_.emplace(std::move(config), verify_each);
  }
  KvRig& rig() { return *rig_; }
  kv::CacheStats stats() { return rig().cache().stats(); }
  kv::Lengths lengths(SeqId seq) { return rig().cache().lengths(seq); }
  Tokens blocks_of(SeqId seq, int group = 0) {
    const auto blocks = rig().cache().table(seq, group).blocks;
    return {blocks.begin(), blocks.end()};
  }

  Tokens first_blocks_of(SeqId seq, int n) {
    Tokens blocks = blocks_of(seq);
    blocks.resize(static_cast<std::size_t>(n));
    return blocks;
  }

  SeqId start(const Tokens& prompt, const kv::Namespace& ns = {}, int n_samples = 1) {
    const auto seq = rig().admit(prompt, ns, n_samples);
    if (!seq) ADD_FAILURE() << "not admitted: " << rig().failure();
    return seq.value_or(SeqId{});
  }
  /// One step with these tokens of one sequence.
  void feed(SeqId seq, const Tokens& tokens) {
    EXPECT_TRUE(rig().extend(seq, tokens)) << rig().failure();
    rig().run_step();
  }
  /// What the cache lacks of a prompt, in as few steps as it may take.
  void prefill(SeqId seq, const Tokens& prompt) {
    for (auto at = prompt.begin() + lengths(seq).len; at != prompt.end();) {
      const auto end = at + std::min<std::ptrdiff_t>(rig().max_extend(), prompt.end() - at);
      feed(seq, {at, end});
      at = end;
    }
  }
  /// A request that was admitted and prefilled.
  SeqId run(const Tokens& prompt, const kv::Namespace& ns = {}, int n_samples = 1) {
    const SeqId seq = start(prompt, ns, n_samples);
    prefill(seq, prompt);
    return seq;
  }
  /// A request that came and went: its tokens are cached.
  void serve(const Tokens& prompt, const kv::Namespace& ns = {}) { rig().finish(run(prompt, ns)); }

  void expect_contiguous(SeqId seq, int group = 0) {
    EXPECT_EQ(rig().stored_rows(seq, group) == rig().contiguous_rows(seq, group), true)
        << "group " << group << " differs from a contiguous buffer\n"
        << rig().cache().dump();
  }

  void TearDown() override {
    if (!rig_) return;
    rig().verify();
    EXPECT_EQ(rig().failure(), "");
    if (!HasFailure()) rig().drain();
    EXPECT_EQ(rig().failure(), "") << "while draining";
  }

 private:
  std::optional<KvRig> rig_;
};

inline void PrintTo(const Shape& shape, std::ostream* out) {
  *out << to_text(shape.groups) << ", blocks of " << shape.block_size;
}

inline std::string shape_name(const testing::TestParamInfo<Shape>& param) {
  return fmt::format("{}Block{}{}", to_text(param.param.groups), param.param.block_size,
                     param.param.constant_hash ? "ConstantHash" : "");
}

inline std::vector<Shape> shapes(std::initializer_list<Groups> group_sets) {
  std::vector<Shape> all;
  for (const Groups groups : group_sets) {
    for (const int block_size : {8, 16, 32}) {
      for (const bool constant : {false, true}) all.push_back({groups, block_size, constant});
    }
  }
  return all;
}
inline std::vector<Shape> all_shapes() {
  return shapes({Groups::kFull, Groups::kFullAndSliding, Groups::kFullAndFiveSliding, Groups::kFullAndChunked});
}
inline std::vector<Shape> sliding_shapes() {
  return shapes({Groups::kFullAndSliding, Groups::kFullAndFiveSliding, Groups::kFullAndChunked});
}

}  // namespace coppice::test
