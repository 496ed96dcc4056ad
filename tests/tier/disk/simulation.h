// A simulation of servers that keep pieces in one folder, on a disk that fails in all ways (simulated_disk.h), in the
// manner of TigerBeetle's: one seed decides everything, so a run that fails can be repeated. simulate() plays some
// thousand calls.
#pragma once

#include <cstdint>
#include <string>

namespace coppice::test {

struct SimulationResult {
  std::string failure;      ///< empty: all held
  std::uint64_t trace = 0;  ///< a hash of which calls were made in which order
  std::int64_t calls = 0;   ///< of the system
  std::int64_t hits = 0, misses = 0, writes = 0, dropped = 0, evicted = 0, damaged = 0, forgotten = 0;
  std::int64_t switch_offs = 0, kills = 0, power_losses = 0, takeovers = 0, lost_locks = 0, meddlings = 0;

  void add(const SimulationResult& other);
};

SimulationResult simulate(std::uint64_t seed);

}  // namespace coppice::test
