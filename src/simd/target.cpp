#include "simd/target.h"

// Some kernels are compiled for it, too.
#define HWY_WANT_AVX3_DL 1
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdlib>
#include <string>

namespace coppice::simd {

namespace {

struct Choice {
  std::int64_t cpu;      ///< what this CPU has
  std::int64_t allowed;  ///< what COPPICE_SIMD leaves of it
  std::string unheeded;
};

std::optional<std::int64_t> better_of(std::int64_t targets, std::string_view name) {
  std::int64_t better = 0;  // lower bits are better targets
  for (; targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    if (hwy::TargetName(target) == name) return better;
    better |= target;
  }
  return std::nullopt;
}

/// Settles the choice. Highway is asked once only: each call of SupportedTargets() makes dispatch forget what was ruled
/// out, by DisableTargets() too (1.0.3).
const Choice& choose() {
  static const Choice choice = [] {
    const char* env = std::getenv("COPPICE_SIMD");
    const std::string wanted = env != nullptr ? env : "";
    const std::int64_t cpu = hwy::SupportedTargets();
    const auto better = better_of(cpu, wanted);
    const std::int64_t allowed = cpu & ~better.value_or(0);
    hwy::GetChosenTarget().Update(allowed);
    return Choice{cpu, allowed, better ? "" : wanted};
  }();
  return choice;
}

}  // namespace

std::optional<std::int64_t> better_than(std::string_view name) {
  return better_of(choose().cpu, name);
}

void choose_target() {
  choose();
}

std::string_view target() {
  const std::int64_t targets = choose().allowed & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

std::string_view unheeded() {
  return choose().unheeded;
}

}  // namespace coppice::simd
