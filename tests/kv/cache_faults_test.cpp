// Would the random test see a fault? Each of these, switched on alone, must be caught by a shortened run of it: faults
// inside Cache (kv/faults.h, compiled into coppice_kv_faulty) and faults of an executor (the byte store's). Runs are
// made in a child process: a fault may crash it, which counts as caught; the same run without a fault must pass.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "kv/faults.h"
#include "support/kv_random_driver.h"

namespace coppice::test {
namespace {

static_assert(check::kFaultBuild, "link this test to coppice_kv_faulty");

struct Deliberate {
  const char* name;
  kv::Fault cache = kv::Fault::kNone;
  StoreFault store = StoreFault::kNone;
};

// Short runs; the first failure, or an empty string.
std::string run_shortened(const Deliberate& fault, bool check_integrity) {
  check::active_fault<kv::Fault> = fault.cache;
  for (const int block_size : {8, 16, 32}) {
    for (const Groups groups : kAllGroups) {
      const RandomReport report = run_random({.seed = 301,
                                              .groups = groups,
                                              .block_size = block_size,
                                              .operations = 9000,
                                              .store_fault = fault.store,
                                              .check_integrity = check_integrity});
      if (!report.failure.empty()) return report.failure;
    }
  }
  return "";
}

// What became of run_shortened() in a child process; empty when it found nothing.
std::string run_in_child(const Deliberate& fault, bool check_integrity) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child < 0) return "no child process";
  if (child == 0) {
    close(ends[0]);
    alarm(120);
    const std::string found = run_shortened(fault, check_integrity);
    std::size_t sent = 0;
    while (sent < found.size()) {
      const ssize_t n = write(ends[1], found.data() + sent, found.size() - sent);
      if (n <= 0) break;
      sent += static_cast<std::size_t>(n);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string found;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) found.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return fmt::format("crashed with signal {}", WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) return fmt::format("exited with {}", WEXITSTATUS(status));
  return found;
}

// The line that says what was wrong, without the picture of the tree.
std::string headline(const std::string& found) {
  const std::size_t first = found.find('\n');
  if (first == std::string::npos) return found;
  return found.substr(first + 1, found.find('\n', first + 1) - first - 1);
}

class CacheFaultsTest : public testing::TestWithParam<Deliberate> {};

TEST_P(CacheFaultsTest, IsCaught) {
  const std::string found = run_in_child(GetParam(), /*check_integrity=*/true);
  EXPECT_NE(found, "") << GetParam().name << " was not noticed";
  fmt::print("{}: {}\n", GetParam().name, headline(found));
}

// check_integrity() belongs to the code under test: what it would hide, the double and the bytes must see.
TEST_P(CacheFaultsTest, IsCaughtWithoutTheCachesOwnCheck) {
  const std::string found = run_in_child(GetParam(), /*check_integrity=*/false);
  EXPECT_NE(found, "") << GetParam().name << " was not noticed";
  fmt::print("{}: {}\n", GetParam().name, headline(found));
}

TEST(CacheFaultsBaselineTest, TheSameRunWithoutAFaultPasses) {
  EXPECT_EQ(run_in_child({"none"}, /*check_integrity=*/true), "");
}

constexpr Deliberate kFaults[] = {
    {"LeakedReference", kv::Fault::kLeakReference},
    {"DroppedReference", kv::Fault::kDropReference},
    {"ForkNotDone", kv::Fault::kSkipFork},
    {"ForkCopiesOneSlotTooFew", kv::Fault::kCopyOneShort},
    {"ForkCopiesAnotherGroup", kv::Fault::kCopyOtherGroup},
    {"MatchOneTokenTooLong", kv::Fault::kMatchOneLong},
    {"HoleIgnored", kv::Fault::kIgnoreHole},
    {"HoleInOneGroupOfAWindow", kv::Fault::kHoleInOneGroup},
    {"SaltIgnored", kv::Fault::kIgnoreSalt},
    {"StaleTableAfterMerge", kv::Fault::kStaleTableAfterMerge},
    {"EvictionOfABlockInUse", kv::Fault::kEvictInUse},
    {"ReservationNotCounted", kv::Fault::kReserveNothing},
    {"UnfilledBlockPublished", kv::Fault::kPublishUnfilled},
    {"ForkKeptWithoutItsCopy", kv::Fault::kKeepForkedTail},
    {"PinWithoutItsLastBlock", kv::Fault::kPinOneShort},
    {"MatchWithoutAState", kv::Fault::kNoStateNeeded},
    {"StateOfOtherTokens", kv::Fault::kStateBeyondItsTokens},
    {"FrozenStateWritten", kv::Fault::kFrozenStateWritten},
    {"StaleState", kv::Fault::kStaleState},
    {"StateOffByOne", kv::Fault::kStateOffByOne},
    {"StateOutlivesItsBlock", kv::Fault::kStateOutlivesBlock},
    {"StateLeaked", kv::Fault::kLeakState},
    {"RewindOneLong", kv::Fault::kRewindOneLong},
    {"RewindBreaksPromise", kv::Fault::kRewindBreaksPromise},
    {"MediaWithoutTheirDigests", kv::Fault::kSymbolsOnly},
    {"BlockDigestWithoutTheMedias", kv::Fault::kDigestOfSymbols},
    {"MatchThatCutsAMedium", kv::Fault::kCutInMedium},
    {"DraftInPlace", kv::Fault::kDraftInPlace},
    {"StateNotWritten", {}, StoreFault::kStateLost},
    {"StateWithoutItsLastPage", {}, StoreFault::kStatePageLost},
    {"CopySkipped", {}, StoreFault::kCopySkipped},
    {"CopyLeavesOutALastSlot", {}, StoreFault::kCopyOneShort},
    {"CopyLeavesOutALayer", {}, StoreFault::kCopyOneLayer},
    {"CopyAfterTheWrites", {}, StoreFault::kCopyTooLate},
    {"CopyOneStepLate", {}, StoreFault::kCopyOfLastStep},
    {"CopiesInReverse", {}, StoreFault::kCopiesReversed},
    {"TailOffByOne", {}, StoreFault::kTailOffByOne},
    {"LastRowLost", {}, StoreFault::kWriteLost},
};

INSTANTIATE_TEST_SUITE_P(Faults, CacheFaultsTest, testing::ValuesIn(kFaults),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace coppice::test
