// Multiply-adds that this machine can do: multiply_peak THREADS keeps vectors of floats in registers for about half a
// second and prints the best rate in f32 multiply-adds/s.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef __AVX512F__
typedef float Lanes __attribute__((vector_size(64)));
#else
typedef float Lanes __attribute__((vector_size(32)));
#endif

enum { kChains = 12, kLanes = sizeof(Lanes) / sizeof(float), kTurns = 200000 };

static volatile int stop;
static pthread_barrier_t barrier;
static volatile float sink;

static void* multiply(void* argument) {
  (void)argument;
  Lanes sums[kChains] = {0}, factor = (Lanes){0} + 0.999999f, more = (Lanes){0} + 1e-6f;
  for (;;) {
    pthread_barrier_wait(&barrier);
    if (stop) break;
    for (int i = 0; i < kTurns; ++i) {
#pragma clang loop unroll(full)
      for (int j = 0; j < kChains; ++j) sums[j] = sums[j] * factor + more;
      __asm__ volatile("" : "+v"(factor));  // nobody may work the turns out beforehand
    }
    pthread_barrier_wait(&barrier);
  }
  for (int j = 1; j < kChains; ++j) sums[0] += sums[j];
  sink = sums[0][0];
  return NULL;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int count, char** arguments) {
  const long threads = count == 2 ? atol(arguments[1]) : 0;
  if (threads < 1) {
    fprintf(stderr, "usage: multiply_peak THREADS\n");
    return 2;
  }
  pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
  for (long i = 0; i < threads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, multiply, NULL) != 0) {
      fprintf(stderr, "multiply_peak: no more threads\n");
      return 1;
    }
  }
  double best = 0;
  const double end = now() + 0.5;
  do {
    const double start = now();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    const double rate = (double)threads * kTurns * kChains * kLanes / (now() - start);
    if (rate > best) best = rate;
  } while (now() < end);
  stop = 1;
  pthread_barrier_wait(&barrier);
  printf("%.0f\n", best);
  return 0;
}
