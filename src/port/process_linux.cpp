#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <system_error>

#include "port/process.h"
#include "port/thread_stacks.h"

namespace coppice::port {

/// The C library read the limit when the process began, and took less than that where there was none.
void set_thread_stacks(std::size_t bytes) {
  pthread_attr_t threads;
  pthread_attr_init(&threads);
  if (pthread_attr_setstacksize(&threads, bytes) == 0) pthread_setattr_default_np(&threads);
  pthread_attr_destroy(&threads);
}

std::filesystem::path program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

/// Also when its file was replaced since.
std::string program_to_run_again() {
  return "/proc/self/exe";
}

char** environment() {
  return environ;
}

/// A nice value belongs to a thread.
bool make_thread_nicer(int steps) {
  static const int started = getpriority(PRIO_PROCESS, 0);
  return setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), started + steps) == 0;
}

void end_with_parent() {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
}

void forbid_dumps() {
  rlimit none{};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_DUMPABLE, 0);
}

}  // namespace coppice::port
