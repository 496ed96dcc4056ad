// Phases: how the threads of ggml's pool share the nodes of a graph, in place of a barrier at which each waits for all others.
//
// A node is a phase of some parts. Threads claim parts until none is left, and who finishes the last one opens the next phase. So a phase
// needs no thread in particular: one that the system lets wait holds the others up only while it has a part, and a late one joins the
// phase that is open then. A thread claims the part of its own number first: what it wrote at one node is in its cache at the next. Nobody waits by spinning for longer than some tens of microseconds: then it sleeps on a futex.
//
// Where other programs want the same processors, the system takes a thread's away in the middle of a part, and all others wait until it comes
// back. So while that takes much of their time each thread sleeps for a moment between two parts now and then: the others have the processor when
// it holds nothing (coppice_rest()).
//
// C and C++: ggml-cpu.c includes this (graph_phases.h), and so does a test. Thread safe as the functions say.
//
// Invariants
//  1. A part is claimed once, and a phase ends when all of its parts are finished. What was written before a part was finished is seen by
//     all parts of later phases.
//  2. `node` and `n_parts` change only between two phases, by the thread that opens the next one.
//  3. Where a part waits at a barrier inside its node, no part of the node ends before each has a thread of its own: those that have one wait.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#elif defined(__APPLE__)
// No header has them; libc++ waits with them, too.
enum { COPPICE_COMPARE_AND_WAIT = 1, COPPICE_WAKE_ALL = 0x100 };
int __ulock_wait(uint32_t operation, void* word, uint64_t value, uint32_t microseconds);
int __ulock_wake(uint32_t operation, void* word, uint64_t unused);
#endif

enum {
  COPPICE_WORDS = 7,  ///< with the count of finished parts they fill a cache line
  COPPICE_MOST_PARTS = 64 * COPPICE_WORDS,
};

/// Four cache lines: what claims write must not be what waiting threads read.
struct coppice_phases {
  __attribute__((aligned(64))) uint64_t taken[COPPICE_WORDS];  ///< a bit for each part; all bits behind the last part are set
  uint32_t finished;                                           ///< parts
  __attribute__((aligned(64))) uint32_t phase;  ///< counts; waiting threads read it, and sleep on it
  uint32_t stop;
  int32_t n_active;       ///< threads [0, n_active) take part in the graph
  uint32_t spins;         ///< pauses before a thread sleeps; 0: phases aren't used
  int32_t node, n_parts;  ///< of the phase; no parts: the graph is done
  __attribute__((aligned(64))) int32_t sleepers;  ///< of those that take part
  // The barrier inside a node.
  __attribute__((aligned(64))) int32_t arrived;
  uint32_t round;
  int32_t round_sleepers;
  // Whether others want the processors.
  __attribute__((aligned(64))) uint64_t counted;  ///< when `lost` was 0, nanoseconds
  uint64_t rests_end;                             ///< threads rest until then
  uint64_t lost;                                  ///< how long threads have waited for a processor since `counted`, nanoseconds
};

/// A thread's own notes. All zeros at first.
struct coppice_place {
  uint32_t phase;  ///< that it has seen last
  uint64_t since;  ///< it has run since then, as far as it knows; nanoseconds
  // At the last look:
  uint64_t ran;   ///< its processor time, nanoseconds
  int64_t slept;  ///< how often it has given its processor up
  int64_t lost;   ///< how often the system has taken it away
};

enum {
  COPPICE_IDLE = 4,                  ///< so many times longer between graphs
  COPPICE_RUN_NS = 1000000,          ///< a thread rests after so long
  COPPICE_REST_NS = 20000,           ///< at least; a timer's slack comes on top
  COPPICE_COUNTED_NS = 100000000,    ///< what is lost is counted over this time
  COPPICE_LOST_PART = 8,             ///< threads rest where they lose more than an eighth of their time; a busy neighbour takes half
  COPPICE_AWAY_NS = 200000,          ///< who was away for so long needs no rest
  COPPICE_RESTS_MS = 2000,           ///< so long, then it is looked at anew
  COPPICE_ALL = INT32_MAX  ///< to wake: as many as there are
};

static inline void coppice_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield" ::: "memory");
#endif
}

/// Each of the first 31 threads has a bit of its own, so that those that don't take part aren't woken.
static inline uint32_t coppice_bit(int thread) {
  return 1U << (thread < 31 ? thread : 31);
}
static inline uint32_t coppice_bits(int n_threads) {
  return n_threads > 31 ? UINT32_MAX : (1U << n_threads) - 1;
}

static inline void coppice_sleep(uint32_t* word, uint32_t value, uint32_t bits) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, (void*)0, (void*)0, bits);
#elif defined(__APPLE__)
  (void)bits;
  __ulock_wait(COPPICE_COMPARE_AND_WAIT, word, value, 0);
#else
  (void)word, (void)value, (void)bits;
  coppice_pause();
#endif
}

static inline void coppice_wake(uint32_t* word, int n, uint32_t bits) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, n, (void*)0, (void*)0, bits);
#elif defined(__APPLE__)
  (void)n, (void)bits;
  __ulock_wake(COPPICE_COMPARE_AND_WAIT | COPPICE_WAKE_ALL, word, 0);
#else
  (void)word, (void)n, (void)bits;
#endif
}

/// Waits until *word is no longer `value`: `spins` pauses, then asleep, counted in *sleepers unless that is null. True: it has slept.
static inline bool coppice_wait(uint32_t* word, uint32_t value, uint32_t spins, int32_t* sleepers, uint32_t bits) {
  for (uint32_t i = 0; i < spins; ++i) {
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return false;
    coppice_pause();
  }
  // Who changes the word looks at the sleepers afterwards, and the system looks at the word before it lets us sleep.
  if (sleepers) __atomic_fetch_add(sleepers, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) coppice_sleep(word, value, bits);
  if (sleepers) __atomic_fetch_sub(sleepers, 1, __ATOMIC_RELAXED);
  return true;
}

/// Nanoseconds of a steady clock.
static inline uint64_t coppice_now(void) {
#if defined(__linux__)
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
#else
  return 0;
#endif
}

/// Nanoseconds for which the calling thread has waited for a processor that was taken away since the last look; 0 where it has slept
/// meanwhile, since both look alike. (What a virtual machine's host takes looks like waiting, too, but nobody here would have it.)
static inline uint64_t coppice_look(struct coppice_place* place, uint64_t now) {
  uint64_t away = 0;
#if defined(__linux__)
  struct rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  const uint64_t ran = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000U +
                       (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000U;
  if (place->since != 0 && usage.ru_nvcsw == place->slept && usage.ru_nivcsw != place->lost) {
    const uint64_t took = now - place->since, had = ran - place->ran;
    away = took > had ? took - had : 0;
  }
  place->ran = ran;
  place->slept = usage.ru_nvcsw;
  place->lost = usage.ru_nivcsw;
#endif
  place->since = now;
  return away;
}

/// Before any other function, once. spins: pauses before a thread sleeps.
static inline void coppice_begin(struct coppice_phases* p, uint32_t spins) {
  __builtin_memset(p, 0, sizeof *p);
  for (int i = 0; i < COPPICE_WORDS; ++i) p->taken[i] = UINT64_MAX;
  p->spins = spins;
}

/// Opens a phase of n parts, all of `node`; n = 0: the graph is done. REQUIRES: the phase before is over; n <= COPPICE_MOST_PARTS.
static inline void coppice_open(struct coppice_phases* p, int node, int n) {
  // The graph may be over, and another one begun, before this thread looks whom to wake: it reads that first. At the end only the first
  // thread is waited for.
  const uint32_t bits = n == 0 ? coppice_bit(0) : coppice_bits(p->n_active);
  p->node = node;
  p->finished = 0;
  __atomic_store_n(&p->n_parts, n, __ATOMIC_RELEASE);
  for (int i = 0; 64 * i < n; ++i) {  // what lies behind the last part stays taken
    __atomic_store_n(&p->taken[i], n - 64 * i >= 64 ? 0 : UINT64_MAX << (n - 64 * i), __ATOMIC_RELEASE);
  }
  __atomic_fetch_add(&p->phase, 1, __ATOMIC_SEQ_CST);
  // It takes a part itself.
  if (__atomic_load_n(&p->sleepers, __ATOMIC_SEQ_CST) > 0) coppice_wake(&p->phase, n == 0 ? 1 : n - 1, bits);
}

/// How many threads take part from now on, by the first thread. REQUIRES: no phase is open. True: they have changed, and
/// coppice_rouse() is due after the next phase was opened.
static inline bool coppice_take(struct coppice_phases* p, int n_threads) {
  if (p->n_active == n_threads) return false;
  __atomic_store_n(&p->n_active, n_threads, __ATOMIC_RELAXED);
  return true;
}

/// Wakes everybody, so that each sees whether it takes part.
static inline void coppice_rouse(struct coppice_phases* p) {
  coppice_wake(&p->phase, COPPICE_ALL, UINT32_MAX);
}

/// The threads' next claims end with -1. REQUIRES: no phase is open.
static inline void coppice_stop(struct coppice_phases* p) {
  __atomic_store_n(&p->stop, 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&p->phase, 1, __ATOMIC_SEQ_CST);
  coppice_rouse(p);
}

/// The thread's own part if nobody has taken it, else any other that is left; -1: none is.
static inline int coppice_pick(struct coppice_phases* p, int thread) {
  const int own = thread % COPPICE_MOST_PARTS;
  // Without a look first, which would double the way of the cache line: all come at once.
  uint64_t bit = UINT64_C(1) << own % 64;
  uint64_t taken = __atomic_fetch_or(&p->taken[own / 64], bit, __ATOMIC_ACQ_REL);
  if ((taken & bit) == 0) return own;
  for (int i = 0; i < COPPICE_WORDS; ++i) {
    const int word = (own / 64 + i) % COPPICE_WORDS;
    if (i > 0) taken = __atomic_load_n(&p->taken[word], __ATOMIC_RELAXED);
    while (taken != UINT64_MAX) {
      bit = ~taken & (taken + 1);  // the lowest that is free
      taken = __atomic_fetch_or(&p->taken[word], bit, __ATOMIC_ACQ_REL);
      if ((taken & bit) == 0) return 64 * word + __builtin_ctzll(bit);
    }
  }
  return -1;
}

/// The number of a part that is this thread's now; waits for one. -1: the graph is done (thread 0), or there will be no other one. Each part
/// that is claimed must be finished.
static inline int coppice_claim(struct coppice_phases* p, int thread, struct coppice_place* place) {
  for (;;) {
    place->phase = __atomic_load_n(&p->phase, __ATOMIC_ACQUIRE);
    if (thread != 0 && __atomic_load_n(&p->stop, __ATOMIC_RELAXED) != 0) return -1;
    const bool takes_part = thread < __atomic_load_n(&p->n_active, __ATOMIC_RELAXED);
    const int part = takes_part ? coppice_pick(p, thread) : -1;
    if (part >= 0) return part;
    const bool done = __atomic_load_n(&p->n_parts, __ATOMIC_ACQUIRE) == 0;
    if (thread == 0 && done) return -1;
    const uint32_t spins = takes_part ? (done ? COPPICE_IDLE * p->spins : p->spins) : 0;
    if (coppice_wait(&p->phase, place->phase, spins, takes_part ? &p->sleepers : (int32_t*)0, coppice_bit(thread))) {
      place->since = coppice_now();
    }
  }
}

/// True: it was the phase's last part, and this thread opens the next phase.
static inline bool coppice_finish(struct coppice_phases* p) {
  const int32_t n = p->n_parts;  // behind the addition it may be another phase's
  return (int32_t)__atomic_add_fetch(&p->finished, 1, __ATOMIC_ACQ_REL) == n;
}

/// Counts what a thread has waited for a processor until `now`: where that is much, threads rest for some time.
static inline void coppice_lost(struct coppice_phases* p, uint64_t now, uint64_t nanoseconds) {
  if (now - __atomic_load_n(&p->counted, __ATOMIC_RELAXED) > COPPICE_COUNTED_NS) {  // two threads may do this, which is no matter
    __atomic_store_n(&p->counted, now, __ATOMIC_RELAXED);
    __atomic_store_n(&p->lost, 0, __ATOMIC_RELAXED);
  }
  const uint64_t lost = __atomic_add_fetch(&p->lost, nanoseconds, __ATOMIC_RELAXED);
  const uint64_t all = (uint64_t)__atomic_load_n(&p->n_active, __ATOMIC_RELAXED) * COPPICE_COUNTED_NS;
  if (lost > all / COPPICE_LOST_PART) {
    __atomic_store_n(&p->rests_end, now + (uint64_t)COPPICE_RESTS_MS * 1000000U, __ATOMIC_RELAXED);
  }
}

/// Sleeps for a moment if others want the processors and this thread has run for long. REQUIRES: it has no part.
static inline void coppice_rest(struct coppice_phases* p, struct coppice_place* place) {
#if defined(__linux__)
  const uint64_t now = coppice_now();
  if (now - place->since < COPPICE_RUN_NS) return;
  const uint64_t away = coppice_look(place, now);
  if (away > 0) coppice_lost(p, now, away);
  if (away < COPPICE_AWAY_NS && now < __atomic_load_n(&p->rests_end, __ATOMIC_RELAXED)) {
    const struct timespec rest = {0, COPPICE_REST_NS};
    nanosleep(&rest, NULL);
    coppice_look(place, coppice_now());
  }
#else
  (void)p, (void)place;
#endif
}

/// The barrier inside a node: waits for all of its parts.
static inline void coppice_meet(struct coppice_phases* p) {
  const int n = p->n_parts;
  if (n <= 1) return;
  const uint32_t round = __atomic_load_n(&p->round, __ATOMIC_ACQUIRE);
  if (__atomic_fetch_add(&p->arrived, 1, __ATOMIC_ACQ_REL) == n - 1) {
    __atomic_store_n(&p->arrived, 0, __ATOMIC_RELAXED);
    __atomic_fetch_add(&p->round, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&p->round_sleepers, __ATOMIC_SEQ_CST) > 0) {
      coppice_wake(&p->round, COPPICE_ALL, UINT32_MAX);
    }
    return;
  }
  coppice_wait(&p->round, round, p->spins, &p->round_sleepers, UINT32_MAX);
}
