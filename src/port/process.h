// What a process or a thread asks of the system for itself: its limits, its priority, its program.
#pragma once

#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace coppice::port {

/// What the system doesn't give. what() is a sentence for the operator.
class SystemLimit : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Opens /dev/null as each of standard input, output and error that is closed. Else a file or socket would get its
/// number, and the log would be written into that.
void open_standard_descriptors();

/// The stack of this thread may grow to `bytes`, and threads that start from now on have that many, whatever `ulimit
/// -s` says. Throws SystemLimit when the hard limit is less.
void ensure_stack(std::size_t bytes);

/// The file of the running program, which may have been replaced since. Empty: the system doesn't tell.
std::filesystem::path program_path();

/// What execv() takes to run this program again. Empty: the system doesn't tell.
std::string program_to_run_again();

/// The environment's variables, "NAME=value", and a null behind the last one.
char** environment();

/// Raises the number of descriptors that this process may have to what it is allowed, and returns it. 0: unknown.
std::size_t raise_descriptor_limit();

/// Makes this thread nicer than the process was at the first call, by so many steps. False: the system refuses.
bool make_thread_nicer(int steps);

/// This process gets SIGTERM when its parent ends, where the system can do that. Async-signal-safe.
void end_with_parent();

/// No core file of this process, which would hold prompts and keys, and no debugger of the same user may attach.
void forbid_dumps();

}  // namespace coppice::port
