// How long the pauses of a thread that spins take: they differ between processors by a factor of ten.
#pragma once

#include <chrono>

namespace coppice::port {

/// How many pauses take so long, at least 1. Takes some tens of microseconds. Thread safe.
int pauses_in(std::chrono::nanoseconds time);

}  // namespace coppice::port
