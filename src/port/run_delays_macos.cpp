// The system doesn't tell.
#include "port/run_delays.h"

namespace coppice::port {

int this_thread_id() {
  return 0;
}

std::vector<int> thread_ids() {
  return {};
}

RunDelays::RunDelays(std::span<const int>) {}

RunDelays::~RunDelays() = default;

std::chrono::nanoseconds RunDelays::sum() const {
  return {};
}

}  // namespace coppice::port
