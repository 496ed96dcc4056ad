// Within port: the part of ensure_stack() that systems do in ways of their own.
#pragma once

#include <cstddef>

namespace coppice::port {

/// Threads that start from now on have stacks of so many bytes.
void set_thread_stacks(std::size_t bytes);

}  // namespace coppice::port
