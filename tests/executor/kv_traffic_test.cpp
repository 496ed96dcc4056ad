// The bytes of keys and values that a step is said to read, on a tiny random model: counted by hand here.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "executor/tiny.h"

namespace coppice {
namespace {

using test::ExecutorRig;
using test::RigPart;
using test::RigSequence;

std::vector<kv::Token> tokens(int n) {
  std::vector<kv::Token> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

struct Traffic {
  executor::KvTraffic step;
  std::uint64_t token = 0;  ///< bytes of one in the pool
};

/// Of one step of two sequences that share `shared` tokens, whole blocks of 32, have `own` each, and decode one more.
Traffic two_decodes(const std::string& attention, const std::string& kv_format, int shared, int own) {
  const auto executor = test::load(test::tiny_path("plain", {}), attention, 32, 1, kv_format);
  ExecutorRig rig(*executor, 7);
  RigSequence base;
  rig.feed(base, tokens(shared), 64);
  RigSequence a = rig.fork(base, shared), b = rig.fork(base, shared);
  rig.feed(a, tokens(own), 64);
  rig.feed(b, tokens(own), 64);
  const executor::KvTraffic before = executor->kv_traffic();
  const auto one = tokens(1);
  const RigPart parts[] = {{&a, one}, {&b, one}};
  rig.step(parts);
  const executor::KvTraffic after = executor->kv_traffic();
  return {{after.bytes_read - before.bytes_read, after.bytes_unique - before.bytes_unique},
          executor->info().groups.at(0).bytes_per_token};
}

TEST(KvTraffic, TreeReadsWhatIsSeenAndEachTokenOnce) {
  for (const char* format : {"f16", "int8", "turbo4"}) {
    const Traffic t = two_decodes("tree", format, 96, 40);
    EXPECT_EQ(t.step.bytes_unique, (96 + 2 * 41) * t.token) << format;
    EXPECT_EQ(t.step.bytes_read, t.step.bytes_unique) << format;
  }
}

TEST(KvTraffic, ChunksTokensCountOnce) {
  const auto executor = test::load(test::tiny_path("plain", {}), "tree");
  ExecutorRig rig(*executor, 7);
  RigSequence s;
  rig.feed(s, tokens(100), 256);
  EXPECT_EQ(executor->kv_traffic().bytes_unique, 100 * executor->info().groups.at(0).bytes_per_token);
}

/// A row of f32 is as large as two of f16.
TEST(KvTraffic, GatherReadsThePoolAndCopiesOfKeysAndValues) {
  const Traffic t = two_decodes("gather", "f16", 96, 40);
  const std::uint64_t seen = 2 * (96 + 41);
  EXPECT_EQ(t.step.bytes_read, seen * (1 + 2) * t.token);
  EXPECT_EQ(t.step.bytes_unique, 0U) << "it doesn't know";
}

TEST(KvTraffic, DenseReadsThePoolAndThreeCopiesWhateverTheFormat) {
  const std::uint64_t copies = 3 * two_decodes("dense", "f16", 96, 40).token;  // keys, values, values as columns
  for (const char* format : {"f16", "int8", "turbo4"}) {
    const Traffic t = two_decodes("dense", format, 96, 40);
    EXPECT_EQ(t.step.bytes_read, 2 * (96 + 41) * (t.token + copies)) << format;
  }
}

}  // namespace
}  // namespace coppice
