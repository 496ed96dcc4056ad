// Each planted fault of tier/faults.h is seen by the simulation within some runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tier/disk/simulation.h"
#include "tier/faults.h"

namespace {

using coppice::test::simulate;
using coppice::tier::Fault;

static_assert(coppice::tier::kFaultBuild);

class PlantedFault : public testing::TestWithParam<int> {};

TEST_P(PlantedFault, IsSeen) {
  coppice::tier::active_fault = static_cast<Fault>(GetParam());
  std::string failure;
  std::uint64_t seed = 0;
  while (failure.empty() && seed < 400) failure = simulate(++seed).failure;
  coppice::tier::active_fault = Fault::kNone;
  EXPECT_NE(failure, "");
  fmt::print("seen in run {}: {}\n", seed, failure);
}

INSTANTIATE_TEST_SUITE_P(All, PlantedFault, testing::Range(1, static_cast<int>(Fault::kEnd)));

}  // namespace
