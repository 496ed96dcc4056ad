// What the static parts of the wheel's program want of the C library, and glibc 2.28 lacks. Linked into each of its files by the libc.so that
// scripts/old_libc.sh writes; hidden, so that a newer C library's own stay in use elsewhere. The rest of what moved since 2.28 (stat, fstat,
// atexit) comes with the start-up files. Thread-safe.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32 says here whether the process has one thread, so that counters need no atomic instructions. "No" is always right.
HIDDEN char __libc_single_threaded = 0;

// glibc 2.36, for std::random_device.
HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) abort();
  return value;
}

// glibc 2.29, where ggml looks for its memory node.
HIDDEN int getcpu(unsigned* cpu, unsigned* node) { return (int)syscall(SYS_getcpu, cpu, node, NULL); }

// glibc 2.30, where a thread is given another priority.
HIDDEN pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// glibc 2.29, for child processes of llama.cpp's, which coppice never starts: the answer that they expect where there is none.
HIDDEN int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t* actions, const char* folder) {
  (void)actions, (void)folder;
  return ENOSYS;
}

// glibc 2.30, for waits until a time of the steady clock. Without it they wait by the clock of the day, as libstdc++ did before, whose callers
// look at the steady clock again: a clock that is set back makes a wait longer.
HIDDEN int coppice_wait_by_day(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  struct timespec now, day;
  if (until->tv_nsec < 0 || until->tv_nsec >= 1000000000 || clock_gettime(clock, &now) != 0) return EINVAL;
  clock_gettime(CLOCK_REALTIME, &day);
  day.tv_sec += until->tv_sec - now.tv_sec;
  day.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (day.tv_nsec < 0) {
    day.tv_nsec += 1000000000;
    --day.tv_sec;
  } else if (day.tv_nsec >= 1000000000) {
    day.tv_nsec -= 1000000000;
    ++day.tv_sec;
  }
  if (day.tv_sec < 0) day.tv_sec = day.tv_nsec = 0;
  return pthread_cond_timedwait(condition, mutex, &day);
}

typedef int (*wait_function)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  static wait_function found;
  wait_function wait = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (wait == NULL) {
    wait = (wait_function)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    if (wait == NULL) wait = coppice_wait_by_day;
    __atomic_store_n(&found, wait, __ATOMIC_RELAXED);
  }
  return wait(condition, mutex, clock, until);
}

// glibc 2.35, for exceptions: which file's code an address is in, and where that file's unwind table is.
struct search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int look(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct search* search = data;
  uintptr_t start = UINTPTR_MAX, end = 0;
  void* table = NULL;
  int inside = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const uintptr_t from = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) table = (void*)from;
    if (part->p_type != PT_LOAD) continue;
    if (from < start) start = from;
    if (from + part->p_memsz > end) end = from + part->p_memsz;
    inside |= search->address >= from && search->address < from + part->p_memsz;
  }
  if (!inside) return 0;
  if (table == NULL) return -1;
  *search->found = (struct dl_find_object){.dlfo_map_start = (void*)start, .dlfo_map_end = (void*)end, .dlfo_eh_frame = table};
  return 1;
}

HIDDEN int coppice_find_by_headers(void* address, struct dl_find_object* found) {
  struct search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

typedef int (*find_function)(void*, struct dl_find_object*);

HIDDEN int _dl_find_object(void* address, struct dl_find_object* found) {
  static find_function chosen;
  find_function find = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
  if (find == NULL) {
    find = (find_function)dlsym(RTLD_DEFAULT, "_dl_find_object");
    if (find == NULL) find = coppice_find_by_headers;
    __atomic_store_n(&chosen, find, __ATOMIC_RELAXED);
  }
  return find(address, found);
}
