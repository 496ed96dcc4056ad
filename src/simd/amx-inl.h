// Gives a thread's AMX tile registers a shape, for the time of a kernel. Code for AMX is compiled where COPPICE_SIMD_AMX, and
// runs where simd::amx(). Included once for each instruction set.

// clang-format off
#if defined(COPPICE_SIMD_AMX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SIMD_AMX_INL
#undef COPPICE_SIMD_AMX_INL
#else
#define COPPICE_SIMD_AMX_INL
#endif
// clang-format on

#include <cstdint>

#include "simd/kernel-inl.h"

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::simd::HWY_NAMESPACE {

constexpr int kTileRow = 64;  ///< bytes
constexpr int kTileRows = 16;

/// While it lives, the thread's eight tiles have 16 rows of 64 bytes. The shape before comes back after it: ggml sets
/// one once in a thread, and relies on it. What was in the tiles is lost.
class WholeTiles {
 public:
  HWY_INLINE WholeTiles() {
    _tile_storeconfig(&before_);
    alignas(64) Config whole{};
    whole.palette = 1;
    for (int i = 0; i < 8; ++i) {
      whole.row_bytes[i] = kTileRow;
      whole.rows[i] = kTileRows;
    }
    _tile_loadconfig(&whole);
  }
  HWY_INLINE ~WholeTiles() { _tile_loadconfig(&before_); }
  WholeTiles(const WholeTiles&) = delete;
  WholeTiles& operator=(const WholeTiles&) = delete;

 private:
  struct Config {  // as the processor has it
    std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
  static_assert(sizeof(Config) == 64);

  alignas(64) Config before_;
};

/// 16 x 16 numbers of 32 bits: rows become columns, in place.
HWY_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // r[i + j]: column j of each 128 bits, of rows i to i + 3
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(r[j], r[j + 4], 0x88), high = _mm512_shuffle_i32x4(r[j], r[j + 4], 0xDD);
    const __m512i low2 = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0x88);
    const __m512i high2 = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0xDD);
    t[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
    t[j + 8] = _mm512_shuffle_i32x4(low, low2, 0xDD);
    t[j + 4] = _mm512_shuffle_i32x4(high, high2, 0x88);
    t[j + 12] = _mm512_shuffle_i32x4(high, high2, 0xDD);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

}  // namespace coppice::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SIMD_AMX

#endif  // COPPICE_SIMD_AMX_INL
