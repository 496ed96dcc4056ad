#include <crt_externs.h>
#include <dlfcn.h>
#include <mach-o/dyld.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "port/process.h"
#include "port/thread_stacks.h"

namespace coppice::port {

namespace {

std::atomic<std::size_t> thread_stack = 0;

}  // namespace

void set_thread_stacks(std::size_t bytes) {
  thread_stack = bytes;
}

/// In place of the system's for all that is linked into this program: threads of whose stacks nobody says anything
/// would have half a MiB, and there is no other way to ask for more for all of them.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (create == nullptr) return EAGAIN;
  const std::size_t bytes = thread_stack;
  if (attributes != nullptr || bytes == 0) return create(thread, attributes, run, argument);
  pthread_attr_t large;
  if (const int error = pthread_attr_init(&large); error != 0) return error;
  int error = pthread_attr_setstacksize(&large, bytes);
  if (error == 0) error = create(thread, &large, run, argument);
  pthread_attr_destroy(&large);
  return error;
}

std::filesystem::path program_path() {
  std::uint32_t size = 0;
  _NSGetExecutablePath(nullptr, &size);
  std::string path(size, '\0');
  if (_NSGetExecutablePath(path.data(), &size) != 0) return {};
  path.resize(path.find('\0'));
  std::error_code error;
  return std::filesystem::canonical(path, error);
}

std::string program_to_run_again() {
  return program_path().string();
}

char** environment() {
  return *_NSGetEnviron();
}

/// No thread is nicer than another one here; what the system calls utility work gives way to all other.
bool make_thread_nicer(int steps) {
  return steps <= 0 || pthread_set_qos_class_self_np(QOS_CLASS_UTILITY, 0) == 0;
}

void end_with_parent() {}

extern "C" int ptrace(int request, pid_t process, char* address, int data);

void forbid_dumps() {
  rlimit none{};
  setrlimit(RLIMIT_CORE, &none);
  constexpr int kDenyAttach = 31;  // PT_DENY_ATTACH of sys/ptrace.h; ends a process that a debugger has
  ptrace(kDenyAttach, 0, nullptr, 0);
}

}  // namespace coppice::port
