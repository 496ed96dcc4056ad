// The instructions, most of them Hopper's (sm_90a), that CUDA C++ has no names for: barriers in shared memory, bulk copies, products of a
// warpgroup. Thin: each function is one instruction or the loop that belongs to it. Source: the PTX manual, 9.7.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace coppice::attention::cuda {

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

/// Before the tensor cores read what this thread has stored to shared memory.
__device__ inline void fence_stores_for_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Among `threads` threads, by number 1 .. 15.
__device__ inline void sync_named(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Copies bytes (a multiple of 16) from device to shared memory; `done` counts them.
__device__ inline void bulk_copy(std::uint32_t to, const void* from, int bytes, Barrier done) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(done.at)
               : "memory");
}

__device__ inline void load_matrices(std::uint32_t (&a)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}

__device__ inline void load_matrices_transposed(std::uint32_t (&a)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}
/// One product of a warp, D += A * B: A 16 x 16, B 16 x 8.
template <class T>
__device__ inline void multiply_16x8(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#define COPPICE_MMA(type)                                                    \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (__is_same(T, __nv_bfloat16)) {
    COPPICE_MMA("bf16");
  } else {
    COPPICE_MMA("f16");
  }
#undef COPPICE_MMA
}

__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLeft = 0>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

/// Describes a matrix in shared memory whose rows are kRowBytes = 32, 64 or 128 bytes and swizzled so; eight rows make a group.
/// kPanelBytes: from one panel to the next, where a product spans several.
template <int kRowBytes, int kPanelBytes = 16>
__device__ inline std::uint64_t describe(std::uint32_t at) {
  constexpr std::uint64_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  constexpr std::uint64_t kGroup = 8 * kRowBytes / 16, kPanel = kPanelBytes / 16;
  return kSwizzle << 62 | kGroup << 32 | kPanel << 16 | ((at & 0x3FFFF) >> 4);
}

// One product of a warpgroup, D (+)= A * B: A 64 x 16 in registers, B 16 x n in shared memory, D 64 x n in n / 2 registers.
// kTransposed: B's rows in memory are its 16 rows (values); else its n columns (keys).
#define COPPICE_R8(d, i)                                                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define COPPICE_WGMMA(n, type, list, a0, a1, a2, a3, desc, scale, trans, ...)                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " scale ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
               "." type " {" list "}, {" a0 "," a1 "," a2 "," a3 "}, " desc ", p, 1, 1, " trans ";\n}\n"              \
               : __VA_ARGS__                                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))
#define COPPICE_L8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define COPPICE_L16 COPPICE_L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define COPPICE_L32 COPPICE_L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define COPPICE_L48 COPPICE_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define COPPICE_L64 COPPICE_L48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define COPPICE_WGMMA128(type)                                                                                \
  COPPICE_WGMMA(128, type, COPPICE_L64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", COPPICE_R8(d, 0),    \
                COPPICE_R8(d, 8), COPPICE_R8(d, 16), COPPICE_R8(d, 24), COPPICE_R8(d, 32), COPPICE_R8(d, 40), \
                COPPICE_R8(d, 48), COPPICE_R8(d, 56))
#define COPPICE_WGMMA16(type) \
  COPPICE_WGMMA(16, type, COPPICE_L8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", COPPICE_R8(d, 0))
#define COPPICE_WGMMA32(type)                                                                             \
  COPPICE_WGMMA(32, type, COPPICE_L16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", COPPICE_R8(d, 0), \
                COPPICE_R8(d, 8))
#define COPPICE_WGMMA64(type)                                                                             \
  COPPICE_WGMMA(64, type, COPPICE_L32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", COPPICE_R8(d, 0), \
                COPPICE_R8(d, 8), COPPICE_R8(d, 16), COPPICE_R8(d, 24))

template <class T, bool kTransposed, int kRegisters>
__device__ __forceinline__ void multiply(float (&d)[kRegisters], const std::uint32_t (&a)[4], std::uint64_t b,
                                         int add) {
  constexpr bool kBf16 = sizeof(T) == 2 && __is_same(T, __nv_bfloat16);
  static_assert(kRegisters == 8 || kRegisters == 16 || kRegisters == 32 || kRegisters == 64);
  if constexpr (kRegisters == 8) {
    if constexpr (kBf16) {
      COPPICE_WGMMA16("bf16");
    } else {
      COPPICE_WGMMA16("f16");
    }
  } else if constexpr (kRegisters == 16) {
    if constexpr (kBf16) {
      COPPICE_WGMMA32("bf16");
    } else {
      COPPICE_WGMMA32("f16");
    }
  } else if constexpr (kRegisters == 32) {
    if constexpr (kBf16) {
      COPPICE_WGMMA64("bf16");
    } else {
      COPPICE_WGMMA64("f16");
    }
  } else {
    if constexpr (kBf16) {
      COPPICE_WGMMA128("bf16");
    } else {
      COPPICE_WGMMA128("f16");
    }
  }
}
#undef COPPICE_WGMMA128
#undef COPPICE_L64
#undef COPPICE_L48
#undef COPPICE_WGMMA64
#undef COPPICE_WGMMA32
#undef COPPICE_WGMMA16
#undef COPPICE_L32
#undef COPPICE_L16
#undef COPPICE_L8
#undef COPPICE_WGMMA
#undef COPPICE_R8

/// By all warps of a warpgroup: gives registers back, or takes what others gave.
template <int kRegisters>
__device__ inline void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Lets the next launch of the stream begin as soon as there is room.
__device__ inline void allow_next_launch() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Until the launch before is through and what it wrote can be seen.
__device__ inline void wait_for_launch_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Two numbers in one register, `low` first.
template <class T>
__device__ inline std::uint32_t pack(float low, float high) {
  std::uint32_t bits;
  if constexpr (__is_same(T, __nv_bfloat16)) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  }
  return bits;
}

/// 2 to the x; 0 for minus infinity.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace coppice::attention::cuda
