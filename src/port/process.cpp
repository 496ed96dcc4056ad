#include "port/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "port/thread_stacks.h"

namespace coppice::port {

void open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one.
    [[maybe_unused]] const int opened = open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

void ensure_stack(std::size_t bytes) {
  set_thread_stacks(bytes);
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes) return;
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < bytes) {
    throw SystemLimit("The stack is limited to " + std::to_string(limit.rlim_max / 1024) + " KiB, and " +
                      std::to_string(bytes / 1024) + " are needed: raise the limit (ulimit -s, LimitSTACK=).");
  }
  limit.rlim_cur = bytes;
  if (setrlimit(RLIMIT_STACK, &limit) != 0) throw SystemLimit("The stack's limit cannot be raised (ulimit -s).");
}

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlimit raised = limit;
  raised.rlim_cur = raised.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace coppice::port
