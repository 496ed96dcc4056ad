#include "check/assert.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kv/block_pool.h"

namespace coppice {
namespace {

TEST(AssertTest, ABrokenContractEndsTheProcessWithItsPlace) {
  const auto take = [](int n) { COPPICE_ASSERT(n > 0 && "a reason"); };
  take(1);
  EXPECT_DEATH(take(0), "coppice: assert_test.cpp:[0-9]+: broken contract: n > 0 && \"a reason\"");
}

/// In the build that people run, too.
TEST(AssertTest, ThePoolChecksItsRequirements) {
  kv::BlockPool pool(2, 1);  // one is the null block
  const kv::BlockRef block = pool.allocate();
  EXPECT_DEATH(static_cast<void>(pool.allocate()), "block_pool.cpp:[0-9]+: broken contract: !free_.empty\\(\\)");
}

}  // namespace
}  // namespace coppice
