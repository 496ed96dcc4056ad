// A cache with a deliberate fault (kv/faults.h): the watch must find it, count it, and keep to its steps.
#include "engine/integrity_watch.h"

#include <gtest/gtest.h>

#include <vector>

#include "kv/faults.h"

namespace coppice::testing {
namespace {

static_assert(check::kFaultBuild, "link this test to coppice_kv_faulty");

class IntegrityWatchTest : public ::testing::Test {
 protected:
  ~IntegrityWatchTest() override { check::active_fault<kv::Fault> = kv::Fault::kNone; }

  /// A sequence that comes and goes, and leaves a reference behind when the fault is on.
  void use_cache() {
    const std::vector<kv::Token> tokens(20, 7);
    const auto seq = cache_.admit({.prompt = tokens});
    ASSERT_TRUE(seq);
    std::vector<kv::BlockOp> copies;
    const auto cached = static_cast<std::size_t>(cache_.lengths(*seq).cached_len);
    ASSERT_TRUE(cache_.extend(*seq, static_cast<std::int32_t>(tokens.size() - cached), copies));
    cache_.publish(*seq, std::span(tokens).subspan(cached));
    cache_.finish(*seq);
  }

  kv::Cache cache_{{.block_size = 8,
                    .num_blocks = 20,
                    .bytes_per_block = 8,
                    .groups = {{.kind = kv::GroupKind::kFull, .layers = {0}, .bytes_per_token = 1}}}};
  std::vector<std::string> found_;
  engine::Snapshot figures_;
};

TEST_F(IntegrityWatchTest, FindsNothingInASoundCacheAndKeepsToItsSteps) {
  engine::IntegrityWatch watch(cache_, 3, [this](const std::string& finding) { found_.push_back(finding); });
  for (int i = 0; i < 7; ++i) {
    use_cache();
    watch.stepped(figures_);
  }
  EXPECT_EQ(figures_.integrity_checks, 3);  // steps 1, 4 and 7
  EXPECT_EQ(figures_.integrity_findings, 0);
  EXPECT_TRUE(found_.empty());
}

TEST_F(IntegrityWatchTest, TellsEachFinding) {
  engine::IntegrityWatch watch(cache_, 1, [this](const std::string& finding) { found_.push_back(finding); });
  check::active_fault<kv::Fault> = kv::Fault::kLeakReference;
  use_cache();
  watch.stepped(figures_);
  watch.stepped(figures_);
  EXPECT_EQ(figures_.integrity_findings, 2);
  ASSERT_EQ(found_.size(), 2U);
  EXPECT_NE(found_[0].find("holders say"), std::string::npos) << found_[0];
}

TEST_F(IntegrityWatchTest, IsOffUnlessAskedFor) {
  engine::IntegrityWatch watch(cache_, 0, {});
  check::active_fault<kv::Fault> = kv::Fault::kLeakReference;
  use_cache();
  watch.stepped(figures_);
  EXPECT_EQ(figures_.integrity_checks, 0);
  EXPECT_EQ(figures_.integrity_findings, 0);
}

}  // namespace
}  // namespace coppice::testing
