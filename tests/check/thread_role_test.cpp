#include "check/thread_role.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "check/assert.h"

namespace coppice {
namespace {

struct Owned {
  check::ThreadRole role;
  void enter() { COPPICE_ASSERT(role.mine()); }
};

TEST(ThreadRoleTest, BelongsToTheFirstThreadThatComes) {
  Owned owned;
  owned.enter();
  owned.enter();
  EXPECT_DEATH(std::thread([&] { owned.enter(); }).join(),
               "thread_role_test.cpp:[0-9]+: broken contract: role.mine\\(\\)");
}

TEST(ThreadRoleTest, WhatIsMovedMayBelongToAnother) {
  Owned owned;
  owned.enter();
  Owned moved = std::move(owned);
  std::thread([&] { moved.enter(); }).join();
  EXPECT_FALSE(moved.role.mine());
}

}  // namespace
}  // namespace coppice
