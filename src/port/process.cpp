#include "port/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <cerrno>
#include <csignal>
#include <string>
#include <system_error>

namespace coppice::port {

void open_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one.
    [[maybe_unused]] const int opened = open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

void ensure_stack(std::size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes) return;
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < bytes) {
    throw SystemLimit("The stack is limited to " + std::to_string(limit.rlim_max / 1024) + " KiB, and " +
                      std::to_string(bytes / 1024) + " are needed: raise the limit (ulimit -s, LimitSTACK=).");
  }
  limit.rlim_cur = bytes;
  if (setrlimit(RLIMIT_STACK, &limit) != 0) throw SystemLimit("The stack's limit cannot be raised (ulimit -s).");
#ifdef __GLIBC__
  // It read the limit when the process began.
  pthread_attr_t threads;
  pthread_attr_init(&threads);
  if (pthread_attr_setstacksize(&threads, bytes) == 0) pthread_setattr_default_np(&threads);
  pthread_attr_destroy(&threads);
#endif
}

std::filesystem::path program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  rlimit raised = limit;
  raised.rlim_cur = raised.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

bool make_thread_nicer(int steps) {
  static const int started = getpriority(PRIO_PROCESS, 0);
#ifdef __linux__  // a nice value belongs to a thread
  return setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), started + steps) == 0;
#else
  return true;
#endif
}

void end_with_parent() {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
}

void forbid_dumps() {
  rlimit none{};
  setrlimit(RLIMIT_CORE, &none);
#ifdef __linux__
  prctl(PR_SET_DUMPABLE, 0);
#endif
}

}  // namespace coppice::port
