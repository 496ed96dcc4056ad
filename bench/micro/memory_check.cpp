#include "memory_check.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace coppice::bench {
namespace {

/// Where the system says nothing of its caches.
constexpr std::size_t kLeast = std::size_t{256} << 20;
constexpr std::size_t kCaches = 2;
/// Kernels that fetch ahead may beat the loop that measures the bandwidth, and some data does stay in the caches.
constexpr double kTolerance = 1.25;

}  // namespace

std::size_t last_level_cache() {
  return static_cast<std::size_t>(std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE)));
}

std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    std::size_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib << 10;
  }
  return 0;
}

std::size_t beyond_caches(std::size_t last_level_cache) {
  return std::max(kLeast, kCaches * last_level_cache);
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPossible:
      return "possible";
    case Verdict::kInCache:
      return "in-cache";
    case Verdict::kTooFew:
      return "too-few";
    case Verdict::kTooMany:
      return "too-many";
  }
  return "";
}

bool impossible(Verdict verdict) {
  return verdict == Verdict::kTooFew || verdict == Verdict::kTooMany;
}

Verdict judge(const Reading& r, std::size_t enough) {
  if (r.read < r.unique) return Verdict::kTooFew;
  if (r.unique * r.layers < enough) return Verdict::kInCache;
  // What a later pass reads again may be in a cache still.
  const std::size_t from_memory = r.one_pass ? r.read : r.unique;
  const bool too_many = static_cast<double>(from_memory) > kTolerance * r.seconds * r.bandwidth;
  return too_many ? Verdict::kTooMany : Verdict::kPossible;
}

}  // namespace coppice::bench
