// Barriers in shared memory and copies into it: instructions that CUDA C++ has no names for. Barriers and bulk copies
// are Hopper's (sm_90); thin: each function is one instruction or the loop that belongs to it. Source: the PTX
// manual, 9.7.
#pragma once

#include <cstdint>

namespace coppice::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// A barrier in shared memory, by its address there.
struct Barrier {
  std::uint32_t at;

  __device__ void init(int arrivals) const {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
  }
  __device__ void arrive() const { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
  /// For `n` threads at once, which have synchronised before.
  __device__ void arrive_for(int n) const {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(at), "r"(n) : "memory");
  }
  /// Arrives, and expects so many bytes of bulk copies in this phase.
  __device__ void arrive_expecting(int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  }
  /// Returns when the phase of this parity is over.
  __device__ void wait(std::uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}\n" ::"r"(at),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialised barriers known to the copy engine.
__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Before the tensor cores read what this thread has stored to shared memory, or a bulk copy overwrites it.
__device__ inline void fence_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Among `threads` threads, by number 1 .. 15.
__device__ inline void sync_named(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// For the others of `threads` threads, which wait.
__device__ inline void arrive_named(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Copies bytes (a multiple of 16) from device to shared memory; `done` counts them.
__device__ inline void bulk_copy(std::uint32_t to, const void* from, int bytes, Barrier done) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(done.at)
               : "memory");
}

/// Brings bytes (a multiple of 16) into the L2 cache, where a later store to them is seen.
__device__ inline void bulk_prefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/// Copies the box that begins at (column, row) of a matrix to shared memory (tensor_map.h; `map`: the CUtensorMap, a
/// kernel's
/// __grid_constant__ parameter); `done` counts its bytes, those outside of the matrix, too.
__device__ inline void copy_box(std::uint32_t to, const void* map, int column, int row, Barrier done) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(map), "r"(column), "r"(row), "r"(done.at)
      : "memory");
}

/// Brings the description of a matrix near, before its first box is copied.
__device__ inline void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Copies 16 bytes from device to shared memory (sm_80); wait_for_copies() waits for what was committed.
__device__ inline void copy_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until at most kLeft of this thread's groups of copies are under way.
template <int kLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace coppice::cuda
