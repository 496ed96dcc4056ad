#include "simd/target.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdint>
#include <cstdlib>

namespace coppice::simd {

void choose_target() {
  static const bool once = [] {
    if (const char* wanted = std::getenv("COPPICE_SIMD")) {
      std::int64_t better = 0;  // lower bits are better targets
      for (std::int64_t bits = hwy::SupportedTargets(); bits != 0; bits &= bits - 1) {
        const std::int64_t target = bits & -bits;
        if (std::string_view(hwy::TargetName(target)) == wanted) {
          hwy::DisableTargets(better);
          break;
        }
        better |= target;
      }
    }
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }();
  (void)once;
}

std::string_view target() {
  choose_target();
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

}  // namespace coppice::simd
