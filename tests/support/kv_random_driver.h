// The model-based random test's driver: plays an engine gone mad against a KvRig and returns the first thing
// found wrong, in words. In-process and free of gtest, so that the fault test can run it too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "support/kv_rig.h"
#include "support/kv_shapes.h"

namespace coppice::test {

struct RandomRun {
  std::uint64_t seed = 1;
  Groups groups = Groups::kFull;
  int block_size = 16;
  std::int64_t operations = 0;
  bool narrow = false;  ///< pools of four or five blocks for each group
  bool media = true;    ///< in some episodes
  bool large = false;   ///< in all, some of 300 rows, in pools of a hundred blocks
  bool dense = false;   ///< in all, in most texts, and some may be cut: for what happens inside of them
  StoreFault store_fault = StoreFault::kNone;
  bool check_integrity = true;  ///< false: by the double and the bytes alone
  /// Gets each episode's cache; what it returns is asked after each operation what is wrong (empty: nothing). Hashes
  /// then tell texts apart.
  std::function<std::function<std::string()>(kv::Cache&)> watch = {};
};

struct RandomReport {
  std::string failure;  ///< empty: nothing found
  std::int64_t operations = 0;
  std::int64_t episodes = 0;
  std::int64_t quiet_episodes = 0;  ///< without an eviction: every match was predicted exactly
  TransitionCounts met{};
};

/// Plays episodes, each with its own pool size, vocabulary, hash and sharing, until `operations` are done.
/// The same run gives the same report.
RandomReport run_random(const RandomRun& run);

}  // namespace coppice::test
