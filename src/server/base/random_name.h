// Names that nobody can guess: of requests and answers, and of what is kept of them.
#pragma once

#include <string>

namespace coppice::server {

/// 128 bits of the system's secure random generator, as 32 hex digits. Any thread.
std::string random_name();

}  // namespace coppice::server
