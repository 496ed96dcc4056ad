// How long a test waits for what must happen: only a hang may meet it, no busy machine.
#pragma once

#include <chrono>

namespace coppice::testing {

inline constexpr std::chrono::seconds kLongestWait{60};

}  // namespace coppice::testing
