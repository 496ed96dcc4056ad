// Each planted fault of tier/faults.h is seen by the simulation within some runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tier/disk/simulation.h"
#include "tier/faults.h"

namespace {

using coppice::test::simulate;
using coppice::tier::Fault;

static_assert(coppice::check::kFaultBuild);

class PlantedFault : public testing::TestWithParam<int> {};

TEST_P(PlantedFault, IsSeen) {
  coppice::check::active_fault<Fault> = static_cast<Fault>(GetParam());
  std::string failure;
  std::uint64_t seed = 0;
  while (failure.empty() && seed < 400) failure = simulate(++seed).failure;
  coppice::check::active_fault<Fault> = Fault::kNone;
  EXPECT_NE(failure, "");
  fmt::print("seen in run {}: {}\n", seed, failure);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedFault, testing::Range(1, static_cast<int>(Fault::kEnd)));

}  // namespace
