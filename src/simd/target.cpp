#include "simd/target.h"

// Some kernels are compiled for it, too.
#define HWY_WANT_AVX3_DL 1
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdlib>
#include <string>

namespace coppice::simd {

namespace {

/// Settles the choice; returns what unheeded() says.
const std::string& choose() {
  static const std::string unheeded = [] {
    const char* env = std::getenv("COPPICE_SIMD");
    const std::string wanted = env != nullptr ? env : "";
    const auto better = better_than(wanted);
    if (better) hwy::DisableTargets(*better);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return better ? "" : wanted;
  }();
  return unheeded;
}

}  // namespace

std::optional<std::int64_t> better_than(std::string_view name) {
  std::int64_t better = 0;  // lower bits are better targets
  for (std::int64_t bits = hwy::SupportedTargets(); bits != 0; bits &= bits - 1) {
    const std::int64_t target = bits & -bits;
    if (hwy::TargetName(target) == name) return better;
    better |= target;
  }
  return std::nullopt;
}

void choose_target() {
  choose();
}

std::string_view target() {
  choose_target();
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

std::string_view unheeded() {
  return choose();
}

}  // namespace coppice::simd
