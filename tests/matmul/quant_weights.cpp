#include "matmul/quant_weights.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace coppice::test {

namespace {

using matmul::QuantType;

/// Bytes of a block, and where its f16 are; -1: none.
struct Layout {
  int bytes, d, m;

  static Layout of(QuantType type) {
    switch (type) {
      case QuantType::kQ4_0:
      case QuantType::kIq4Nl:
        return {18, 0, -1};
      case QuantType::kQ4_1:
        return {20, 0, 2};
      case QuantType::kQ5_0:
        return {22, 0, -1};
      case QuantType::kQ5_1:
        return {24, 0, 2};
      case QuantType::kQ8_0:
        return {34, 0, -1};
      case QuantType::kQ4K:
        return {144, 0, 2};
      case QuantType::kQ5K:
        return {176, 0, 2};
      case QuantType::kQ6K:
        return {210, 208, -1};
      case QuantType::kIq4Xs:
        return {136, 0, -1};
      case QuantType::kMxfp4:
        return {17, -1, -1};
      case QuantType::kBf16:
        return {64, -1, -1};
    }
    return {};
  }
};

constexpr std::array kTable = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// MXFP4's numbers, doubled.
constexpr std::array kTwice = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

class Block {
 public:
  Block(QuantType type, const std::byte* bytes) : type_(type), bytes_(bytes) {}

  Weight weight(int i) const {
    const Layout at = Layout::of(type_);
    Weight w{.d = at.d < 0 ? 0.0F : half(at.d), .m = at.m < 0 ? 0.0F : half(at.m), .s = 1, .t = 1, .q = 0};
    switch (type_) {
      case QuantType::kQ4_0:
        w.q = nibble(2, 16, i) - 8;
        break;
      case QuantType::kQ4_1:
        w.q = nibble(4, 16, i);
        break;
      case QuantType::kQ5_0:
        w.q = nibble(6, 16, i) + 16 * bits(2 + i / 8, i % 8, 1) - 16;
        break;
      case QuantType::kQ5_1:
        w.q = nibble(8, 16, i) + 16 * bits(4 + i / 8, i % 8, 1);
        break;
      case QuantType::kQ8_0:
        w.q = signed_byte(2 + i);
        break;
      case QuantType::kIq4Nl:
        w.q = table(nibble(2, 16, i));
        break;
      case QuantType::kQ4K:
      case QuantType::kQ5K:
        w.m = -w.m;
        w.s = six_bits(0, i / 32);
        w.t = six_bits(4, i / 32);
        w.q = type_ == QuantType::kQ4K ? nibble(16, 32, i) : nibble(48, 32, i) + 16 * bits(16 + i % 32, i / 32, 1);
        break;
      case QuantType::kQ6K:
        w.s = signed_byte(192 + i / 16);
        w.q = nibble(0, 64, i) + 16 * bits(128 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2) - 32;
        break;
      case QuantType::kIq4Xs:
        w.s = bits(4 + i / 64, i % 64 / 32 * 4, 4) + 16 * bits(2 + i / 128, i % 128 / 32 * 2, 2) - 32;
        w.q = table(nibble(8, 16, i));
        break;
      case QuantType::kMxfp4:
        w.d = std::ldexp(1.0F, byte(0) - 128);
        w.q = kTwice[static_cast<std::size_t>(nibble(1, 16, i))];
        break;
      case QuantType::kBf16:
        w.d = std::bit_cast<float>(static_cast<std::uint32_t>(byte(2 * i) + 256 * byte(2 * i + 1)) << 16);
        w.q = 1;
        break;
    }
    return w;
  }

 private:
  int byte(int at) const { return std::to_integer<int>(bytes_[at]); }
  int bits(int at, int first, int n) const { return byte(at) >> first & ((1 << n) - 1); }
  int signed_byte(int at) const { return byte(at) < 128 ? byte(at) : byte(at) - 256; }
  /// 2 `run` nibbles in `run` bytes: the lower ones of all of them first. Then the next such bytes.
  int nibble(int at, int run, int i) const {
    return bits(at + i / (2 * run) * run + i % run, i % (2 * run) / run * 4, 4);
  }
  /// Of Q4_K and Q5_K. part: 0 for s, 4 for t.
  int six_bits(int part, int i) const {
    if (i < 4) return bits(4 + part + i, 0, 6);
    return bits(8 + i, part, 4) + 16 * bits(4 + part + i - 4, 6, 2);
  }
  static int table(int index) { return kTable[static_cast<std::size_t>(index)]; }
  /// f16: sign, 5 bits of exponent, 10 of mantissa.
  float half(int at) const {
    const int v = byte(at) + 256 * byte(at + 1);
    const float mantissa = 1.0F + static_cast<float>(v & 1023) / 1024.0F;
    return std::ldexp(v & 0x8000 ? -mantissa : mantissa, (v >> 10 & 31) - 15);
  }

  QuantType type_;
  const std::byte* bytes_;
};

}  // namespace

QuantWeights random_weights(QuantType type, int n_in, int n_out, std::mt19937& random) {
  const Layout layout = Layout::of(type);
  const int per_block = type == QuantType::kBf16 ? 32 : matmul::QuantMatrix::file_block(type);
  QuantWeights result;
  const int n_blocks = n_in / per_block * n_out;
  for (int i = 0; i < n_blocks * layout.bytes; ++i) result.bytes.push_back(static_cast<std::byte>(random()));
  for (int block = 0; block < n_blocks; ++block) {
    std::byte* bytes = result.bytes.data() + static_cast<std::ptrdiff_t>(block) * layout.bytes;
    for (const int half : {layout.d, layout.m}) {  // 2^-7 .. 2^-5, either sign
      if (half >= 0) bytes[half + 1] = static_cast<std::byte>((random() & 0x83) | (8 + random() % 2) << 2);
    }
    for (int i = 1; type == QuantType::kBf16 && i < layout.bytes; i += 2)  // below 2^-4, either sign
      bytes[i] = static_cast<std::byte>((random() & 0x80) | (0x39 + random() % 4));
    if (type == QuantType::kMxfp4) bytes[0] = static_cast<std::byte>(121 + random() % 3);
    for (int i = 0; i < per_block; ++i) result.weights.push_back(Block(type, bytes).weight(i));
  }
  return result;
}

}  // namespace coppice::test
