// Another quantised type: the table at the head of quant_matrix.h and QuantType; PackedForm::of() and with_type()
// (quant_kernel.h); this file; new bits: quant_unpack-inl.h; packed_type() (executor/ggml/store/weights.cpp);
// tests/matmul/quant_weights.cpp.
#include "matmul/quant_file.h"

#include <cstring>

namespace coppice::matmul {

namespace {

using Byte = std::uint8_t;

std::uint16_t half_at(const Byte* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

/// Low halves of n bytes, then high ones.
void read_nibbles(const Byte* from, int n, Byte* q) {
  for (int i = 0; i < n; ++i) {
    q[i] = from[i] & 15;
    q[i + n] = from[i] >> 4;
  }
}

/// The fifth bits: 32, in order.
void add_fifth_bits(const Byte* from, Byte* q) {
  std::uint32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  for (int i = 0; i < 32; ++i) q[i] |= static_cast<Byte>((bits >> i & 1) << 4);
}

/// 12 bytes of Q4_K and Q5_K: 6 bits each. The first four of s and t are whole; of the others the upper two bits stand
/// above those.
void read_six_bits(const Byte* from, FileBlock& to) {
  for (std::size_t i = 0; i < 4; ++i) {
    to.s[i] = from[i] & 63;
    to.t[i] = from[i + 4] & 63;
    to.s[i + 4] = static_cast<Byte>((from[i + 8] & 15) | (from[i] >> 6) << 4);
    to.t[i + 4] = static_cast<Byte>((from[i + 8] >> 4) | (from[i + 4] >> 6) << 4);
  }
}

/// d, -m, s and t, [fifth bits: bit i for weights 32 i to 32 i + 31], nibbles by 64 weights.
void read_q4_k_or_q5_k(bool fifth, const Byte* from, FileBlock& to) {
  to.m = half_at(from + 2) ^ 0x8000;
  read_six_bits(from + 4, to);
  const Byte* bits = from + 16;
  from = fifth ? bits + 32 : bits;
  for (int i = 0; i < kFileSuper; i += 64, from += 32) read_nibbles(from, 32, to.q.data() + i);
  if (!fifth) return;
  for (int i = 0; i < kFileSuper; ++i)
    to.q[static_cast<std::size_t>(i)] |= static_cast<Byte>((bits[i % 32] >> i / 32 & 1) << 4);
}

/// Lower four bits, upper two bits, s, d. By 128 weights: 64 bytes of nibbles; 32 bytes, two bits for every 32nd
/// weight.
void read_q6_k(const Byte* from, FileBlock& to) {
  const Byte* upper = from + 128;
  for (int i = 0; i < kFileSuper; i += 128, from += 64, upper += 32) {
    Byte* q = to.q.data() + i;
    read_nibbles(from, 64, q);
    for (int k = 0; k < 128; ++k) q[k] |= static_cast<Byte>((upper[k % 32] >> k / 32 * 2 & 3) << 4);
  }
  std::memcpy(to.s.data(), upper, 16);
  to.d = half_at(upper + 16);
}

/// d, two upper bits of each s, four lower bits of each s, nibbles by 32 weights. s + 32 is stored.
void read_iq4_xs(const Byte* from, FileBlock& to) {
  const std::uint16_t upper = half_at(from + 2);
  for (std::size_t i = 0; i < 8; ++i) {
    const int lower = from[4 + i / 2] >> (4 * (i % 2)) & 15;
    to.s[i] = static_cast<Byte>((lower | (upper >> (2 * i) & 3) << 4) - 32);
  }
  for (int i = 0; i < 8; ++i) read_nibbles(from + 8 + 16 * i, 16, to.q.data() + 32 * i);
}

}  // namespace

std::size_t file_bytes(QuantType type) {
  switch (type) {
    case QuantType::kQ4_0:
    case QuantType::kIq4Nl:
      return 18;
    case QuantType::kQ4_1:
      return 20;
    case QuantType::kQ5_0:
      return 22;
    case QuantType::kQ5_1:
      return 24;
    case QuantType::kQ8_0:
      return 34;
    case QuantType::kQ4K:
      return 144;
    case QuantType::kQ5K:
      return 176;
    case QuantType::kQ6K:
      return 210;
    case QuantType::kMxfp4:
      return 17;
    case QuantType::kBf16:
      return 64;
    case QuantType::kIq4Xs:
      break;
  }
  return 136;
}

void read_block(QuantType type, const std::byte* block, FileBlock& to) {
  const auto* from = reinterpret_cast<const Byte*>(block);
  Byte* q = to.q.data();
  to.d = half_at(from);
  switch (type) {
    case QuantType::kQ4_0:
    case QuantType::kIq4Nl:
      return read_nibbles(from + 2, 16, q);
    case QuantType::kQ4_1:
      to.m = half_at(from + 2);
      return read_nibbles(from + 4, 16, q);
    case QuantType::kQ5_0:
      read_nibbles(from + 6, 16, q);
      return add_fifth_bits(from + 2, q);
    case QuantType::kQ5_1:
      to.m = half_at(from + 2);
      read_nibbles(from + 8, 16, q);
      return add_fifth_bits(from + 4, q);
    case QuantType::kQ8_0:
      for (int i = 0; i < 32; ++i) q[i] = from[2 + i] ^ 128;
      return;
    case QuantType::kQ4K:
      return read_q4_k_or_q5_k(false, from, to);
    case QuantType::kQ5K:
      return read_q4_k_or_q5_k(true, from, to);
    case QuantType::kQ6K:
      return read_q6_k(from, to);
    case QuantType::kIq4Xs:
      return read_iq4_xs(from, to);
    case QuantType::kMxfp4:
      to.d = from[0];
      return read_nibbles(from + 1, 16, q);
    case QuantType::kBf16:  // nothing to take apart
      return;
  }
}

}  // namespace coppice::matmul
