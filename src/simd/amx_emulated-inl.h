// Intel's tile registers and the product of bf16, for processors that have none: the kernels of tiles are compiled
// against them where COPPICE_AMX_EMULATED, and so are tested on any machine with AVX-512. As the Software Developer's
// Manual describes them, to the last bit (NaNs' payloads aside), a few ten times slower; a test compares them with the
// real ones where these are. What a processor answers with an invalid opcode ends the program with a sentence. Each
// thread has its own. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_SIMD_AMX_EMULATED_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SIMD_AMX_EMULATED_INL
#undef COPPICE_SIMD_AMX_EMULATED_INL
#else
#define COPPICE_SIMD_AMX_EMULATED_INL
#endif
// clang-format on

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simd/amx.h"
#include "simd/kernel-inl.h"

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::simd::HWY_NAMESPACE {

class EmulatedTiles {
 public:
  static constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

  static EmulatedTiles& of_thread() {
    static thread_local EmulatedTiles tiles;
    return tiles;
  }

  /// LDTILECFG. Palette 0 is what a thread begins with: no tile has a shape.
  void load_shapes(const TileShapes& shapes) {
    require(shapes.palette <= 1 && shapes.start_row == 0, "such shapes are not taken");
    for (int i = 0; i < kTiles && shapes.palette == 1; ++i) {
      require(shapes.rows[i] <= kRows && shapes.row_bytes[i] <= kRowBytes, "a tile is too large");
    }
    shapes_ = shapes.palette == 1 ? shapes : TileShapes{};
    std::memset(tiles_, 0, sizeof tiles_);
  }
  /// STTILECFG
  TileShapes shapes() const { return shapes_; }

  /// TILEZERO
  void zero(int tile) {
    require_shape(tile);
    std::memset(tiles_[tile], 0, sizeof tiles_[tile]);
  }
  /// TILELOADD: rows that lie `stride` bytes apart. What the shape leaves out becomes 0.
  void load(int tile, const void* from, std::ptrdiff_t stride) {
    zero(tile);
    for (int row = 0; row < shapes_.rows[tile]; ++row) {
      std::memcpy(tiles_[tile][row], static_cast<const std::byte*>(from) + row * stride, shapes_.row_bytes[tile]);
    }
  }
  /// TILESTORED
  void store(int tile, void* to, std::ptrdiff_t stride) const {
    require_shape(tile);
    for (int row = 0; row < shapes_.rows[tile]; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride, tiles_[tile][row], shapes_.row_bytes[tile]);
    }
  }

  /// TDPBF16PS: to[m][n] += a[m][2 k] * b[k][2 n] + a[m][2 k + 1] * b[k][2 n + 1], summed over k from the first on,
  /// those of even places and those of odd ones each by themselves, and both together added to what was there.
  void multiply_bf16(int to, int a, int b) {
    require_shape(to), require_shape(a), require_shape(b);
    const int pairs = shapes_.row_bytes[a] / 4;
    require(to != a && to != b && a != b, "a product takes three tiles");
    require(shapes_.rows[a] == shapes_.rows[to] && shapes_.rows[b] == pairs &&
                shapes_.row_bytes[b] == shapes_.row_bytes[to],
            "the shapes of a product's tiles do not fit");
    __m512 even_b[kRows], odd_b[kRows];
    for (int k = 0; k < pairs; ++k) split(tiles_[b][k], even_b[k], odd_b[k]);
    constexpr int kTogether = 4;  // rows, whose sums wait for nothing but themselves
    for (int m = 0; m < shapes_.rows[to]; m += kTogether) {
      alignas(64) float even_a[kTogether][kRows], odd_a[kTogether][kRows];
      __m512 even[kTogether], odd[kTogether];
      for (int i = 0; i < kTogether; ++i) {
        split(tiles_[a][m + i], even[i], odd[i]);
        _mm512_store_ps(even_a[i], even[i]), _mm512_store_ps(odd_a[i], odd[i]);
        even[i] = odd[i] = _mm512_setzero_ps();
      }
      for (int k = 0; k < pairs; ++k) {
        for (int i = 0; i < kTogether; ++i) {
          even[i] = flushed(_mm512_fmadd_ps(_mm512_set1_ps(even_a[i][k]), even_b[k], even[i]));
          odd[i] = flushed(_mm512_fmadd_ps(_mm512_set1_ps(odd_a[i][k]), odd_b[k], odd[i]));
        }
      }
      for (int i = 0; i < kTogether && m + i < shapes_.rows[to]; ++i) {
        const __m512 before = flushed(_mm512_load_ps(tiles_[to][m + i]));
        const __m512 sums = flushed(_mm512_add_ps(before, flushed(_mm512_add_ps(even[i], odd[i]))));
        std::memcpy(tiles_[to][m + i], &sums, shapes_.row_bytes[to]);
      }
    }
  }

 private:
  /// Numbers that are too small for all their bits count as 0, with their sign.
  static HWY_INLINE __m512 flushed(__m512 x) {
    constexpr int kDenormal = 0x20;
    return _mm512_mask_and_ps(x, _mm512_fpclass_ps_mask(x, kDenormal), x, _mm512_set1_ps(-0.0F));
  }
  /// The bf16 numbers in even places of a row, and those in odd ones.
  static HWY_INLINE void split(const std::byte* row, __m512& even, __m512& odd) {
    const __m512i pairs = _mm512_load_si512(row);
    even = flushed(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
    odd = flushed(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U)))));
  }

  static void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "AMX: %s\n", what);
    std::abort();
  }
  void require_shape(int tile) const {
    require(shapes_.palette == 1 && shapes_.rows[tile] > 0 && shapes_.row_bytes[tile] > 0, "a tile has no shape");
  }

  TileShapes shapes_ = {};
  alignas(64) std::byte tiles_[kTiles][kRows][kRowBytes] = {};
};

/// VCVTNE2PS2BF16: the nearest bf16, a's in the vector's upper half; numbers too small for all their bits count as 0.
HWY_INLINE __m512i emulated_bf16_of(__m512 a, __m512 b) {
  const auto rounded = [](__m512 x) HWY_ATTR {
    constexpr int kNan = 0x81, kDenormal = 0x20;
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7FFF)));
    sum = _mm512_mask_or_epi32(sum, _mm512_fpclass_ps_mask(x, kNan), bits, _mm512_set1_epi32(0x400000));
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
    sum = _mm512_mask_mov_epi32(sum, _mm512_fpclass_ps_mask(x, kDenormal), sign);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(rounded(b)), rounded(a), 1);
}

}  // namespace coppice::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SIMD_AMX

#endif  // COPPICE_SIMD_AMX_EMULATED_INL
