// Where memory lies on a machine with several memory nodes.
#pragma once

#include <string>

namespace coppice::cli {

/// numa: none, interleave. Of memory that this thread and later ones touch first from now on. The log says what was
/// done.
void place_memory(const std::string& numa);

}  // namespace coppice::cli
