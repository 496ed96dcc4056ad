// What this machine does at best, in about a second; prints one number, the best pass:
//   machine_peak read THREADS BYTES   bytes/s: a buffer of BYTES is read over and over, each thread its own part, as a
//                                     decode step reads weights and keys: in huge pages, and fetched ahead into L2
//   machine_peak multiply THREADS     f32 multiply-adds/s, on vectors that stay in registers
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef __AVX512F__
enum { kVectorBytes = 64 };
#else
enum { kVectorBytes = 32 };
#endif
typedef uint64_t Lanes __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(kVectorBytes)));

enum { kAheadBytes = 8192 };
enum { kChains = 12, kTurns = 200000 };  // sums that must not wait for one another

static const Lanes* buffer;
static size_t lanes_per_thread;
static void (*pass)(size_t thread);
static volatile int stop;
static pthread_barrier_t barrier;
static volatile uint64_t read_sink;
static volatile float multiply_sink;

static void read_part(size_t thread) {
  const Lanes* part = buffer + thread * lanes_per_thread;
  Lanes sums[8] = {0};
  for (size_t i = 0; i < lanes_per_thread; i += 8)
    for (int j = 0; j < 8; ++j) {
      __builtin_prefetch((const char*)(part + i + j) + kAheadBytes, 0, 2);
      sums[j] ^= part[i + j];
    }
  for (int j = 1; j < 8; ++j) sums[0] ^= sums[j];
  read_sink = sums[0][0];
}

static void multiply(size_t thread) {
  Floats sums[kChains] = {0}, factor = (Floats){0} + 0.999999f, more = (Floats){0} + (float)thread;
  for (int i = 0; i < kTurns; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < kChains; ++j) sums[j] = sums[j] * factor + more;
    __asm__ volatile("" : "+v"(factor));  // nobody may work the turns out beforehand
  }
  for (int j = 1; j < kChains; ++j) sums[0] += sums[j];
  multiply_sink = sums[0][0];
}

static void* work(void* thread) {
  for (;;) {
    pthread_barrier_wait(&barrier);
    if (stop) return NULL;
    pass((size_t)(uintptr_t)thread);
    pthread_barrier_wait(&barrier);
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int usage(void) {
  fprintf(stderr, "usage: machine_peak read THREADS BYTES\n       machine_peak multiply THREADS\n");
  return 2;
}

int main(int count, char** arguments) {
  if (count < 3) return usage();
  const long threads = atol(arguments[2]);
  double work_of_pass = 0;
  if (threads >= 1 && strcmp(arguments[1], "read") == 0 && count == 4) {
    const long long bytes = atoll(arguments[3]);
    if (bytes < threads * 4096) return usage();
    lanes_per_thread = (size_t)(bytes / threads) / (8 * sizeof(Lanes)) * 8;
    const size_t used = lanes_per_thread * (size_t)threads * sizeof(Lanes);
    void* memory = NULL;
    if (posix_memalign(&memory, 1 << 21, used) != 0) {
      fprintf(stderr, "machine_peak: too little memory for %zu bytes\n", used);
      return 1;
    }
    madvise(memory, used, MADV_HUGEPAGE);  // where there are some
    memset(memory, 1, used);
    buffer = memory, pass = read_part, work_of_pass = (double)used;
  } else if (threads >= 1 && strcmp(arguments[1], "multiply") == 0 && count == 3) {
    pass = multiply;
    work_of_pass = (double)threads * kTurns * kChains * (kVectorBytes / sizeof(float));
  } else {
    return usage();
  }
  pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
  for (long i = 0; i < threads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, (void*)(uintptr_t)i) != 0) {
      fprintf(stderr, "machine_peak: no more threads\n");
      return 1;
    }
  }
  double best = 0;
  const double end = now() + 1.0;
  do {
    const double start = now();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    const double rate = work_of_pass / (now() - start);
    if (rate > best) best = rate;
  } while (now() < end);
  stop = 1;
  pthread_barrier_wait(&barrier);
  printf("%.0f\n", best);
  return 0;
}
