#include "simd/amx.h"

#ifdef COPPICE_AMX_EMULATED

namespace coppice::simd {

bool request_amx() {
  return true;
}

}  // namespace coppice::simd

// g++ 12 loads tiles' shapes wrong (docs/decisions.md, "clang 19 builds everything").
#elif defined(__x86_64__) && defined(__linux__) && defined(__clang__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace coppice::simd {

bool request_amx() {
  constexpr unsigned kBf16 = 1U << 22, kTile = 1U << 24, kWanted = kBf16 | kTile, kVectors = 1U << 5;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kWanted) != kWanted) return false;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0 || (eax & kVectors) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2): ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace coppice::simd

#else

namespace coppice::simd {

bool request_amx() {
  return false;
}

}  // namespace coppice::simd

#endif
