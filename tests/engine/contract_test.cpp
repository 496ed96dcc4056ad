// The contract of an executor that works ahead, and of the cache under it, without an engine (support/ahead_caller.h).
// All tokens must be the oracle's.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/harness.h"
#include "engine/oracle.h"
#include "support/ahead_caller.h"
#include "support/fake_executor.h"

namespace coppice::testing {
namespace {

class Caller final : public test::AheadCaller {
 public:
  Caller(Groups groups, std::uint64_t seed) : Caller(groups, make_device(groups, seed), seed) {}

  void check() {
    ASSERT_EQ(fault(), "");
    for (const std::string& fault : device_->faults()) FAIL() << fault;
    for (const auto& talk : talks()) {
      ASSERT_EQ(talk->out,
                expected_tokens(groups_, talk->prompt, seeds_[talk->number], static_cast<int>(talk->out.size())));
    }
  }

 private:
  static constexpr int kChunk = 8;
  static kv::CacheConfig config(Groups groups) {
    return cache_config({.groups = groups, .num_blocks = 300, .max_extend = 2 * kChunk});
  }
  static std::unique_ptr<FakeExecutor> make_device(Groups groups, std::uint64_t seed) {
    return std::make_unique<FakeExecutor>(config(groups), 0, /*depth=*/1, seed);
  }
  Caller(Groups groups, std::unique_ptr<FakeExecutor> device, std::uint64_t seed)
      : AheadCaller(*device, config(groups), {.chunk = kChunk, .longest = 60, .may_fail = true}, seed),
        device_(std::move(device)),
        groups_(make_groups(groups)),
        shared_(random_prompt(random_, 37)) {
    for (int i = 0; i < 40; ++i) device_->fail_at(20 + static_cast<int>(random_() % 2000));
    add(kTalks);
  }

  void begin(test::Talk& talk) override {
    talk.prompt = shared_ + random_prompt(random_, 1 + random_() % 30);
    seeds_[talk.number] = random_() % 1000;
  }
  sampling::SamplerSpec spec(const test::Talk& talk) override {
    return {.seed = seeds_[talk.number], .counter = talk.out.size()};
  }

  static constexpr int kTalks = 5;
  std::unique_ptr<FakeExecutor> device_;
  std::vector<kv::GroupSpec> groups_;
  Prompt shared_;
  std::array<std::uint64_t, kTalks> seeds_{};  ///< of talks, by number
};

class ContractTest : public PerGroups {};

TEST_P(ContractTest, TokensAreTheSameWhateverTheOrderOfEvents) {
  Caller caller(GetParam(), test_seed(26));
  for (int i = 0; i < 2500 && !HasFailure(); ++i) {
    caller.step();
    if (i % 50 == 0) caller.check();
  }
  caller.check();
  EXPECT_GE(caller.failed, 30);
  EXPECT_GE(caller.left, 500);
  EXPECT_GE(caller.drawn, 2000);
}

COPPICE_FOR_ALL_GROUPS(ContractTest);

}  // namespace
}  // namespace coppice::testing
