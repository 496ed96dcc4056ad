// A thread's AMX tile registers: their instructions, which COPPICE_AMX_EMULATED replaces by functions, and a shape for
// the time of a kernel. Code for AMX is compiled where COPPICE_SIMD_AMX, and runs where simd::amx(). Included once for
// each instruction set.

// clang-format off
#if defined(COPPICE_SIMD_AMX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SIMD_AMX_INL
#undef COPPICE_SIMD_AMX_INL
#else
#define COPPICE_SIMD_AMX_INL
#endif
// clang-format on

#include <cstddef>
#include <cstdint>

#include "simd/amx.h"
#include "simd/kernel-inl.h"
#ifdef COPPICE_AMX_EMULATED
#include "simd/amx_emulated-inl.h"
#endif

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::simd::HWY_NAMESPACE {

constexpr int kTileRow = 64;  ///< bytes
constexpr int kTileRows = 16;

#ifdef COPPICE_AMX_EMULATED

HWY_INLINE void load_shapes(const TileShapes& shapes) {
  EmulatedTiles::of_thread().load_shapes(shapes);
}
HWY_INLINE void store_shapes(TileShapes& shapes) {
  shapes = EmulatedTiles::of_thread().shapes();
}
template <int Tile>
HWY_INLINE void zero_tile() {
  EmulatedTiles::of_thread().zero(Tile);
}
template <int Tile>
HWY_INLINE void load_tile(const void* from, std::ptrdiff_t stride) {
  EmulatedTiles::of_thread().load(Tile, from, stride);
}
template <int Tile>
HWY_INLINE void store_tile(void* to, std::ptrdiff_t stride) {
  EmulatedTiles::of_thread().store(Tile, to, stride);
}
template <int To, int A, int B>
HWY_INLINE void multiply_tiles() {
  EmulatedTiles::of_thread().multiply_bf16(To, A, B);
}
HWY_INLINE __m512i bf16_of(__m512 a, __m512 b) {
  return emulated_bf16_of(a, b);
}

#else

HWY_INLINE void load_shapes(const TileShapes& shapes) {
  _tile_loadconfig(&shapes);
}
HWY_INLINE void store_shapes(TileShapes& shapes) {
  _tile_storeconfig(&shapes);
}
template <int Tile>
HWY_INLINE void zero_tile() {
  _tile_zero(Tile);
}
/// Rows that lie `stride` bytes apart.
template <int Tile>
HWY_INLINE void load_tile(const void* from, std::ptrdiff_t stride) {
  _tile_loadd(Tile, from, static_cast<std::size_t>(stride));
}
template <int Tile>
HWY_INLINE void store_tile(void* to, std::ptrdiff_t stride) {
  _tile_stored(Tile, to, static_cast<std::size_t>(stride));
}
/// To += A * B: rows of pairs of bf16 times columns of such pairs, sums in f32.
template <int To, int A, int B>
HWY_INLINE void multiply_tiles() {
  _tile_dpbf16ps(To, A, B);
}
/// The nearest bf16 of both, a's in the vector's upper half.
HWY_INLINE __m512i bf16_of(__m512 a, __m512 b) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(a, b));
}

#endif  // COPPICE_AMX_EMULATED

/// While it lives, the thread's eight tiles have 16 rows of 64 bytes. The shape before comes back after it: ggml sets
/// one once in a thread, and relies on it. What was in the tiles is lost.
class WholeTiles {
 public:
  HWY_INLINE WholeTiles() {
    store_shapes(before_);
    alignas(64) TileShapes whole{};
    whole.palette = 1;
    for (int i = 0; i < 8; ++i) {
      whole.row_bytes[i] = kTileRow;
      whole.rows[i] = kTileRows;
    }
    load_shapes(whole);
  }
  HWY_INLINE ~WholeTiles() { load_shapes(before_); }
  WholeTiles(const WholeTiles&) = delete;
  WholeTiles& operator=(const WholeTiles&) = delete;

 private:
  alignas(64) TileShapes before_;
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
