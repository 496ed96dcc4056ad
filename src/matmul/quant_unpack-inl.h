// What differs between the types: how a block of a tile becomes bytes, and its scales f32. Included once for each
// instruction set.
#if defined(COPPICE_MATMUL_QUANT_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MATMUL_QUANT_UNPACK_INL_H_
#undef COPPICE_MATMUL_QUANT_UNPACK_INL_H_
#else
#define COPPICE_MATMUL_QUANT_UNPACK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "matmul/quant_kernel.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::matmul::COPPICE_SIMD_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kBlock = QuantMatrix::kBlock;
constexpr int kOut = QuantMatrix::kTileOutputs;
constexpr int kGroups = kBlock / 4;  ///< groups of four inputs in a block

using F = hn::CappedTag<float, kOut>;
using I = hn::RebindToSigned<F>;
using U8 = hn::Repartition<std::uint8_t, F>;
using U16 = hn::Repartition<std::uint16_t, F>;

/// The bits of `mask` of each byte, moved left by Left (right where it is negative). Bits of neighbours are in the
/// rest.
template <int Left>
HWY_INLINE hn::Vec<U8> bits_at(hn::Vec<U8> bytes, hn::Vec<U8> mask) {
  const auto wide = hn::BitCast(U16(), bytes);
  if constexpr (Left > 0) return hn::And(hn::BitCast(U8(), hn::ShiftLeft<Left>(wide)), mask);
  if constexpr (Left < 0) return hn::And(hn::BitCast(U8(), hn::ShiftRight<-Left>(wide)), mask);
  return hn::And(bytes, mask);
}

/// The q of four inputs of each lane's output, for each group of a block; with a table, the numbers. block: the lanes'
/// first.
template <QuantType Type>
HWY_INLINE void unpack(const std::byte* block, hn::Vec<U8> (&w)[kGroups]) {
  constexpr PackedForm form = PackedForm::of(Type);
  const U8 d;
  const auto load = [&](int vector) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(block) + vector * kOut * 4);
  };
  if constexpr (form.bits == 8) {
    for (int g = 0; g < kGroups; ++g) w[g] = load(g);
    return;
  }
  const auto low = hn::Set(d, std::uint8_t{15});
  for (int g = 0; g < kGroups; g += 2) {
    const auto pairs = load(g / 2);
    w[g] = hn::And(pairs, low);
    w[g + 1] = bits_at<-4>(pairs, low);
  }
  if constexpr (form.bits == 5) {
    const auto bits = load(4), fifth = hn::Set(d, std::uint8_t{16});
    w[0] = hn::Or(w[0], bits_at<4>(bits, fifth));
    w[1] = hn::Or(w[1], bits_at<3>(bits, fifth));
    w[2] = hn::Or(w[2], bits_at<2>(bits, fifth));
    w[3] = hn::Or(w[3], bits_at<1>(bits, fifth));
    w[4] = hn::Or(w[4], bits_at<0>(bits, fifth));
    w[5] = hn::Or(w[5], bits_at<-1>(bits, fifth));
    w[6] = hn::Or(w[6], bits_at<-2>(bits, fifth));
    w[7] = hn::Or(w[7], bits_at<-3>(bits, fifth));
  }
  if constexpr (form.bits == 6) {
    const auto upper = hn::Set(d, std::uint8_t{48});
    for (int g = 0; g < kGroups; g += 4) {
      const auto bits = load(4 + g / 4);
      w[g] = hn::Or(w[g], bits_at<4>(bits, upper));
      w[g + 1] = hn::Or(w[g + 1], bits_at<2>(bits, upper));
      w[g + 2] = hn::Or(w[g + 2], bits_at<0>(bits, upper));
      w[g + 3] = hn::Or(w[g + 3], bits_at<-2>(bits, upper));
    }
  }
  if constexpr (form.table) {
    const auto table = hn::LoadDup128(d, table_of(Type).data());
    for (int g = 0; g < kGroups; ++g) w[g] = hn::TableLookupBytes(table, w[g]);
  }
}

HWY_INLINE hn::Vec<F> load_halves(const std::byte* halves) {
  const hn::Rebind<hwy::float16_t, F> half;
  return hn::PromoteTo(F(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(halves)));
}

template <class T>  // of 8 bits
HWY_INLINE hn::Vec<F> load_smalls(const std::byte* smalls) {
  const hn::Rebind<T, I> small;
  return hn::ConvertTo(F(), hn::PromoteTo(I(), hn::LoadU(small, reinterpret_cast<const T*>(smalls))));
}

/// Powers of two, as the exponents of f32.
HWY_INLINE hn::Vec<F> load_powers(const std::byte* exponents) {
  const hn::Rebind<std::uint8_t, I> byte;
  const auto wide = hn::PromoteTo(I(), hn::LoadU(byte, reinterpret_cast<const std::uint8_t*>(exponents)));
  return hn::BitCast(F(), hn::ShiftLeft<23>(wide));
}

/// The scales of a chunk's blocks, for as many outputs as a vector has lanes. A type's s are signed, unless it has t.
template <QuantType Type>
struct ChunkScales {
  static constexpr PackedForm form = PackedForm::of(Type);
  hn::Vec<F> d, m;
  const std::byte* at;  ///< the chunk; for lanes that aren't the first, their d

  HWY_INLINE ChunkScales(const std::byte* chunk, int first_lane)
      : d(form.powers ? load_powers(chunk + first_lane) : load_halves(chunk + first_lane * 2)),
        m(hn::Zero(F())),
        at(chunk + first_lane) {
    if constexpr (form.has_min()) m = load_halves(chunk + form.min_at() + first_lane * 2);
  }
  /// d * s of half a block where the type has two s, of the block elsewhere.
  HWY_INLINE hn::Vec<F> scale(int block, int half) const {
    if constexpr (form.scales == 0) return d;
    const std::byte* s = at + form.scales_at() + (block * form.scales + half) * kOut;
    if constexpr (form.small_mins) return hn::Mul(d, load_smalls<std::uint8_t>(s));
    return hn::Mul(d, load_smalls<std::int8_t>(s));
  }
  /// m * t
  HWY_INLINE hn::Vec<F> min(int block) const {
    if constexpr (!form.small_mins) return m;
    return hn::Mul(m, load_smalls<std::uint8_t>(at + form.small_mins_at() + block * kOut));
  }
};

/// Asks for a block that comes soon, of this tile or the next one; with the first of a chunk, for the scales. The
/// hardware's prefetchers come late (docs/decisions.md, "Packed products on CPUs"). Into L2: a core waits for few lines
/// of L1 at a time (docs/decisions.md, "Weights in order").
template <QuantType Type>
HWY_INLINE void prefetch_block(const std::byte* chunk, int block) {
  constexpr PackedForm form = PackedForm::of(Type);
  constexpr std::size_t ahead = 16 / form.chunk_blocks * form.chunk_bytes();
  const std::byte* from =
      chunk + ahead + (block == 0 ? 0 : form.blocks_at() + static_cast<std::size_t>(block) * form.block_bytes());
  const std::byte* end = chunk + ahead + form.blocks_at() + static_cast<std::size_t>(block + 1) * form.block_bytes();
  for (; from < end; from += 64) __builtin_prefetch(from, 0, 2);
}

}  // namespace coppice::matmul::COPPICE_SIMD_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
