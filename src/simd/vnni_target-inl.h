// Makes AVX3_DL mean AVX512-VNNI: Highway 1.0.3 looks for that before it chooses this target, but compiles for AVX-VNNI.
// Include it after Highway and before any code of a file that sets HWY_WANT_AVX3_DL. Included once for each instruction set.
// Such a file has AVX-VNNI's instructions, too, which the processor may lack: clang makes them of 128- and 256-bit sums of
// products of 16-bit numbers. So it must not have any but those that it asks for by name.

// clang-format off
#if defined(COPPICE_SIMD_VNNI_TARGET_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SIMD_VNNI_TARGET_INL
#undef COPPICE_SIMD_VNNI_TARGET_INL
#else
#define COPPICE_SIMD_VNNI_TARGET_INL
#endif
// clang-format on

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR \
  HWY_TARGET_STR_AVX3  \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512vnni,avx512bitalg,avx512vpopcntdq"
#endif

#endif  // COPPICE_SIMD_VNNI_TARGET_INL
