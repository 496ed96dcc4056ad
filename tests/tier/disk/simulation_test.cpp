// The disk store on a simulated disk. COPPICE_SEED=n replays a run, COPPICE_SECONDS=n plays new ones for so long: hours
// of it are due when the store changes (docs/decisions.md, "Pieces are files").
#include "tier/disk/simulation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "support/dice.h"
#include "tier/disk/disk_folder.h"
#include "tier/disk/fibers.h"
#include "tier/disk/simulated_disk.h"

namespace {

using coppice::test::simulate;
using coppice::test::SimulatedDisk;
using coppice::test::SimulationResult;
using testing::ElementsAre;
using testing::StartsWith;

double seconds_to_play() {
  const char* const given = std::getenv("COPPICE_SECONDS");
  return given == nullptr ? 3 : std::atof(given);
}

TEST(Simulation, NeverAWrongByteAndNeverALostLock) {
  const char* const given = std::getenv("COPPICE_SEED");
  std::uint64_t seed = given == nullptr ? std::random_device()() : std::strtoull(given, nullptr, 10);
  const auto begun = std::chrono::steady_clock::now();
  SimulationResult all;
  std::int64_t n = 0;
  do {
    const SimulationResult one = simulate(seed);
    ASSERT_EQ(one.failure, "") << "COPPICE_SEED=" << seed;
    all.add(one);
    ++n;
    ++seed;
  } while (given == nullptr &&
           std::chrono::steady_clock::now() - begun < std::chrono::duration<double>(seconds_to_play()));
  fmt::print(
      "{} runs up to COPPICE_SEED={}, {} calls: {} hits, {} misses, {} writes, {} dropped, {} evicted, {} damaged, {} "
      "forgotten, {} switched off, {} kills, {} power losses, {} opened, {} locks lost, {} meddled with\n",
      n, seed - 1, all.calls, all.hits, all.misses, all.writes, all.dropped, all.evicted, all.damaged, all.forgotten,
      all.switch_offs, all.kills, all.power_losses, all.takeovers, all.lost_locks, all.meddlings);
}

TEST(Simulation, ASeedDecidesEverything) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const SimulationResult first = simulate(seed), second = simulate(seed);
    EXPECT_EQ(first.trace, second.trace);
    EXPECT_EQ(first.calls, second.calls);
    EXPECT_EQ(first.hits, second.hits);
  }
}

// Room that others take, and give back.
TEST(Simulation, NoRoomAndRoomAgainAreSaidOnceEach) {
  coppice::test::Dice dice(1);
  coppice::test::Fibers fibers;
  SimulatedDisk disk(dice, fibers);
  disk.weather.shorts = 0;
  coppice::test::SimulatedFiles files(disk, 1);
  std::vector<std::string> said;
  coppice::tier::DiskFolder folder(files, {.bytes = SimulatedDisk::kAll, .free_share = 0.1},
                                   [&](const std::string& line) { said.push_back(line); });
  ASSERT_EQ(folder.open(), "");
  for (int round = 0; round < 2; ++round) {
    said.clear();
    disk.weather.others = SimulatedDisk::kAll;
    for (int i = 0; i < 3; ++i) folder.tidy();
    EXPECT_TRUE(folder.counters().no_room);
    disk.weather.others = 0;
    for (int i = 0; i < 3; ++i) folder.tidy();
    EXPECT_FALSE(folder.counters().no_room);
    EXPECT_THAT(said, ElementsAre(StartsWith("disk has no room for pieces: of its file system"),
                                  "disk has room for pieces again"));
  }
}

}  // namespace
