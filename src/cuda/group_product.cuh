// Products of a warpgroup on Hopper's tensor cores (wgmma, sm_90a), and the registers that its warps give and take.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace coppice::cuda {

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

/// Describes a matrix in shared memory whose rows are kRowBytes = 32, 64 or 128 bytes and swizzled so; eight rows make
/// a group. kPanelBytes: from one panel to the next, where a product spans several. kGroupBytes: from one group to the
/// next.
template <int kRowBytes, int kPanelBytes = 16, int kGroupBytes = 8 * kRowBytes>
__device__ inline std::uint64_t describe(std::uint32_t at) {
  constexpr std::uint64_t kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  constexpr std::uint64_t kGroup = kGroupBytes / 16, kPanel = kPanelBytes / 16;
  return kSwizzle << 62 | kGroup << 32 | kPanel << 16 | ((at & 0x3FFFF) >> 4);
}

/// The same for a matrix that begins so many bytes behind a described one.
__device__ inline std::uint64_t behind(std::uint64_t described, std::uint32_t bytes) {
  const std::uint32_t low = static_cast<std::uint32_t>(described) + (bytes >> 4);  // no carry: shared memory is smaller
  return (described & 0xFFFFFFFF00000000) | low;
}
/// The same in all lanes, and known to be so by the compiler: descriptions then cost a warp's instructions, not its
/// lanes'.
__device__ inline std::uint32_t uniform(std::uint32_t x) {
  return __shfl_sync(~0U, x, 0);
}

// One product of a warpgroup, D (+)= A * B: A 64 x 16 in registers, B 16 x n in shared memory, D 64 x n in n / 2
// registers. kTransposed: B's rows in memory are its 16 rows (values); else its n columns (keys).
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
#define COPPICE_L128                                                             \
  COPPICE_L64                                                                    \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"             \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"             \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define COPPICE_WGMMA256(type)                                                                                     \
  COPPICE_WGMMA(256, type, COPPICE_L128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", COPPICE_R8(d, 0), \
                COPPICE_R8(d, 8), COPPICE_R8(d, 16), COPPICE_R8(d, 24), COPPICE_R8(d, 32), COPPICE_R8(d, 40),      \
                COPPICE_R8(d, 48), COPPICE_R8(d, 56), COPPICE_R8(d, 64), COPPICE_R8(d, 72), COPPICE_R8(d, 80),     \
                COPPICE_R8(d, 88), COPPICE_R8(d, 96), COPPICE_R8(d, 104), COPPICE_R8(d, 112), COPPICE_R8(d, 120))
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
  static_assert(kRegisters == 8 || kRegisters == 16 || kRegisters == 32 || kRegisters == 64 || kRegisters == 128);
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
  } else if constexpr (kRegisters == 64) {
    if constexpr (kBf16) {
      COPPICE_WGMMA128("bf16");
    } else {
      COPPICE_WGMMA128("f16");
    }
  } else {
    if constexpr (kBf16) {
      COPPICE_WGMMA256("bf16");
    } else {
      COPPICE_WGMMA256("f16");
    }
  }
}

// The same with A in shared memory, too.
#define COPPICE_WGMMA_SHARED(n, type, list, a_at, b_at, scale, ...)                                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " scale ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
               "." type " {" list "}, " a_at ", " b_at ", p, 1, 1, 0, 0;\n}\n"                                        \
               : __VA_ARGS__                                                                                          \
               : "l"(a), "l"(b), "r"(add))
#define COPPICE_WGMMA_SHARED32(type) \
  COPPICE_WGMMA_SHARED(32, type, COPPICE_L16, "%16", "%17", "%18", COPPICE_R8(d, 0), COPPICE_R8(d, 8))
#define COPPICE_WGMMA_SHARED64(type)                                                                   \
  COPPICE_WGMMA_SHARED(64, type, COPPICE_L32, "%32", "%33", "%34", COPPICE_R8(d, 0), COPPICE_R8(d, 8), \
                       COPPICE_R8(d, 16), COPPICE_R8(d, 24))
#define COPPICE_WGMMA_SHARED128(type)                                                                                 \
  COPPICE_WGMMA_SHARED(128, type, COPPICE_L64, "%64", "%65", "%66", COPPICE_R8(d, 0), COPPICE_R8(d, 8),               \
                       COPPICE_R8(d, 16), COPPICE_R8(d, 24), COPPICE_R8(d, 32), COPPICE_R8(d, 40), COPPICE_R8(d, 48), \
                       COPPICE_R8(d, 56))

/// A: described like keys.
template <class T, int kRegisters>
__device__ __forceinline__ void multiply(float (&d)[kRegisters], std::uint64_t a, std::uint64_t b, int add) {
  constexpr bool kBf16 = __is_same(T, __nv_bfloat16);
  static_assert(kRegisters == 16 || kRegisters == 32 || kRegisters == 64);
  if constexpr (kRegisters == 16) {
    if constexpr (kBf16) {
      COPPICE_WGMMA_SHARED32("bf16");
    } else {
      COPPICE_WGMMA_SHARED32("f16");
    }
  } else if constexpr (kRegisters == 32) {
    if constexpr (kBf16) {
      COPPICE_WGMMA_SHARED64("bf16");
    } else {
      COPPICE_WGMMA_SHARED64("f16");
    }
  } else {
    if constexpr (kBf16) {
      COPPICE_WGMMA_SHARED128("bf16");
    } else {
      COPPICE_WGMMA_SHARED128("f16");
    }
  }
}
#undef COPPICE_WGMMA_SHARED128
#undef COPPICE_WGMMA_SHARED64
#undef COPPICE_WGMMA_SHARED32
#undef COPPICE_WGMMA_SHARED
#undef COPPICE_WGMMA256
#undef COPPICE_L128
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

}  // namespace coppice::cuda
