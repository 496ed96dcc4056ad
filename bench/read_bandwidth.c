// Memory read bandwidth of this machine: read_bandwidth THREADS BYTES reads a buffer of BYTES over and over for about
// a second, each thread its own part, as a decode step reads weights and keys, and prints the best pass in bytes/s.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t Lanes __attribute__((vector_size(64)));

static const Lanes* buffer;
static size_t lanes_per_thread;
static volatile int stop;
static pthread_barrier_t barrier;
static volatile uint64_t sink;

static void* read_part(void* argument) {
  const Lanes* part = buffer + (size_t)(uintptr_t)argument * lanes_per_thread;
  for (;;) {
    pthread_barrier_wait(&barrier);
    if (stop) return NULL;
    // Eight sums: the adds must not wait for one another.
    Lanes sums[8] = {0};
    for (size_t i = 0; i < lanes_per_thread; i += 8)
      for (int j = 0; j < 8; ++j) sums[j] ^= part[i + j];
    for (int j = 1; j < 8; ++j) sums[0] ^= sums[j];
    sink = sums[0][0];
    pthread_barrier_wait(&barrier);
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int count, char** arguments) {
  const long threads = count == 3 ? atol(arguments[1]) : 0;
  const long long bytes = count == 3 ? atoll(arguments[2]) : 0;
  if (threads < 1 || bytes < threads * 4096) {
    fprintf(stderr, "usage: read_bandwidth THREADS BYTES\n");
    return 2;
  }
  lanes_per_thread = (size_t)(bytes / threads) / (8 * sizeof(Lanes)) * 8;
  const size_t used = lanes_per_thread * (size_t)threads * sizeof(Lanes);
  void* memory = NULL;
  if (posix_memalign(&memory, 1 << 21, used) != 0) {
    fprintf(stderr, "read_bandwidth: too little memory for %zu bytes\n", used);
    return 1;
  }
  memset(memory, 1, used);
  buffer = memory;
  pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
  for (long i = 0; i < threads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, read_part, (void*)(uintptr_t)i) != 0) {
      fprintf(stderr, "read_bandwidth: no more threads\n");
      return 1;
    }
  }
  double best = 0;
  const double end = now() + 1.0;
  do {
    const double start = now();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    const double rate = (double)used / (now() - start);
    if (rate > best) best = rate;
  } while (now() < end);
  stop = 1;
  pthread_barrier_wait(&barrier);
  printf("%.0f\n", best);
  return 0;
}
