// Whether what a row says of bytes, time and bandwidth can be true together, and how much data that question needs.
// Stateless.
#pragma once

#include <cstddef>
#include <string_view>

namespace coppice::bench {

/// Bytes, of all cores together; 0: the system doesn't say.
std::size_t last_level_cache();
/// Bytes that programs may still take; 0: the system doesn't say.
std::size_t available_memory();

/// Bytes that, read again and again in turns, come from memory each time but for some.
std::size_t beyond_caches(std::size_t last_level_cache);

/// What a row says of one layer.
struct Reading {
  std::size_t unique = 0;  ///< bytes that the rows see
  std::size_t read = 0;    ///< bytes that the backend counted
  std::size_t layers = 0;  ///< of a sample
  double seconds = 0;      ///< the shortest
  double bandwidth = 0;    ///< bytes per second, the highest
  bool one_pass = false;   ///< over each block: then all that was counted came from memory
};

enum class Verdict {
  kPossible,
  kInCache,  ///< the sample's data may lie in a cache: its time tells nothing of its bytes
  kTooFew,   ///< fewer bytes counted than the rows see
  kTooMany,  ///< more bytes than memory gives in this time
};
std::string_view verdict_name(Verdict verdict);
bool impossible(Verdict verdict);

/// `enough`: beyond_caches() of this machine.
Verdict judge(const Reading& r, std::size_t enough);

}  // namespace coppice::bench
