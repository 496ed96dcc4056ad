// Memory runs out at every single allocation of some steps, ours and ggml's, one after the other: that costs the step,
// and the next ones are computed as ever.
#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "executor/tiny.h"
#include "support/failing_malloc.h"

namespace coppice::executor {
namespace {

using test::ExecutorRig;
using test::RigSequence;
using test::Row;

/// Steps of sizes that need ever more memory, and of others between them.
class Steps {
 public:
  explicit Steps(const std::string& attention)
      : executor_(test::load(test::tiny_path("tiny", {}), attention)), rig_(*executor_) {}

  /// The logits of all. `failing`: the number of the allocation that finds no memory, of the whole; 0: none. Null:
  /// there were fewer.
  std::optional<std::vector<Row>> run(std::int64_t failing) {
    std::mt19937 random(5);
    std::vector<Row> all;
    RigSequence one, other;
    bool failed = failing == 0;
    for (const std::size_t n : {3, 1, 60, 1, 3, 17, 90, 60, 1}) {
      const auto tokens = test::random_tokens(random, n);
      const auto batch =
          rig_.batch(std::vector<test::RigPart>{{.sequence = n % 2 == 0 ? &one : &other, .tokens = tokens}});
      if (!failed) {
        try {
          const testing::FailingMalloc memory(failing);
          executor_->forward(batch);
        } catch (const std::exception&) {
          EXPECT_TRUE(testing::FailingMalloc::failed());
        }
        failed = testing::FailingMalloc::failed();
        failing = testing::FailingMalloc::left();
      }
      for (Row& row : rig_.run(batch)) all.push_back(std::move(row));
    }
    if (!failed) return std::nullopt;
    return all;
  }

 private:
  std::unique_ptr<Executor> executor_;
  ExecutorRig rig_;
};

TEST(OutOfMemoryInSteps, CostsTheStepOnly) {
  if (!testing::malloc_can_fail()) GTEST_SKIP() << "malloc() is the sanitizer's, or another library's";
  for (const std::string attention : {"tree", "dense"}) {
    const auto right = Steps(attention).run(0);
    std::int64_t n = 1;
    for (;; ++n) {
      SCOPED_TRACE(attention + ", allocation " + std::to_string(n));
      const auto rows = Steps(attention).run(n);
      if (!rows || HasFailure()) break;
      ASSERT_EQ(*rows, *right);
    }
    EXPECT_GT(n, 100);
    std::cout << attention << ": " << n << " allocations\n";
  }
}

}  // namespace
}  // namespace coppice::executor
