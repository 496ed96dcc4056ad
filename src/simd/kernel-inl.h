// What a file of kernels includes in place of <hwy/highway.h>, after <hwy/foreach_target.h>: Highway, whose target
// AVX3_DL it completes. Highway 1.0.3 chooses AVX3_DL where the processor has AVX512-VNNI, but compiles it for
// AVX-VNNI. Here it is compiled for AVX512-VNNI, and with clang for AMX-BF16 and AVX512-BF16, too. A processor that has
// AVX3_DL may lack the latter two and AVX-VNNI, so:
//   - code for AMX and bf16 runs only where simd::amx();
//   - products of 16-bit numbers in 128- or 256-bit vectors are written so that clang can't make AVX-VNNI's of them
//     (add_products() of attention/cpu/kv_load-inl.h). A test looks for those in the objects.
// With COPPICE_AMX_EMULATED code for AMX and bf16 is compiled for AVX512-VNNI alone (simd/amx_emulated-inl.h), for
// tests.
//
// On 64-bit ARM it knows NEON alone. A file that defines COPPICE_SIMD_NEON_BYTES as one of simd::NeonBytes's numbers, 1
// or 2, is compiled for its instructions, too. Code that such files share lies in COPPICE_SIMD_NAMESPACE, which is
// another one then.
//
// Included once for each instruction set. Highway's own part of it comes first.

// clang-format off
#if defined(COPPICE_SIMD_KERNEL_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SIMD_KERNEL_INL
#undef COPPICE_SIMD_KERNEL_INL
#else
#define COPPICE_SIMD_KERNEL_INL
#endif
// clang-format on

#include <hwy/highway.h>

#undef COPPICE_SIMD_AMX  // whether code for AMX is compiled
#undef COPPICE_SIMD_AMX_STR
#if HWY_TARGET == HWY_AVX3_DL && defined(COPPICE_AMX_EMULATED)
#define COPPICE_SIMD_AMX 1
#define COPPICE_SIMD_AMX_STR ""
#elif HWY_TARGET == HWY_AVX3_DL && defined(__clang__)
#define COPPICE_SIMD_AMX 1
#define COPPICE_SIMD_AMX_STR ",avx512bf16,amx-tile,amx-bf16"
#else
#define COPPICE_SIMD_AMX 0
#define COPPICE_SIMD_AMX_STR ""
#endif

#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR \
  HWY_TARGET_STR_AVX3  \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512vnni,avx512bitalg,avx512vpopcntdq" COPPICE_SIMD_AMX_STR
#endif

#undef COPPICE_SIMD_NAMESPACE
#ifdef COPPICE_SIMD_NEON_BYTES
#if COPPICE_SIMD_NEON_BYTES == 1
#define COPPICE_SIMD_NEON_STR "+dotprod"
#define COPPICE_SIMD_NAMESPACE N_NEON_DOTPROD
#else
#define COPPICE_SIMD_NEON_STR "+dotprod,+i8mm"
#define COPPICE_SIMD_NAMESPACE N_NEON_I8MM
#endif
// What Highway defines where it dispatches.
#undef HWY_BEFORE_NAMESPACE
#undef HWY_AFTER_NAMESPACE
#undef HWY_ATTR
#define HWY_BEFORE_NAMESPACE() HWY_PUSH_ATTRIBUTES(COPPICE_SIMD_NEON_STR) static_assert(true)
#define HWY_AFTER_NAMESPACE() HWY_POP_ATTRIBUTES static_assert(true)
#define HWY_ATTR __attribute__((target(COPPICE_SIMD_NEON_STR)))
#else
#define COPPICE_SIMD_NAMESPACE HWY_NAMESPACE
#endif

#endif  // COPPICE_SIMD_KERNEL_INL
