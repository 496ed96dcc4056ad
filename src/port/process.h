// What a process needs before it does anything else.
#pragma once

#include <cstddef>
#include <stdexcept>

namespace coppice::port {

/// What the system doesn't give. what() is a sentence for the operator.
class SystemLimit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Opens /dev/null as each of standard input, output and error that is closed. Else a file or socket would get its number, and the log
/// would be written into that.
void open_standard_descriptors();

/// The stack of this thread may grow to `bytes`, and threads that start from now on have that many, whatever `ulimit -s` says.
/// Throws SystemLimit when the hard limit is less.
void ensure_stack(std::size_t bytes);

/// No core file of this process, which would hold prompts and keys, and no debugger of the same user may attach.
void forbid_dumps();

}  // namespace coppice::port
