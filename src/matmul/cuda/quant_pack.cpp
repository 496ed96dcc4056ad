#include "matmul/cuda/quant_pack.h"

#include <cstdint>
#include <cstring>

#include "matmul/quant_file.h"

namespace coppice::matmul::cuda {

namespace {

void put_half(std::byte* to, std::uint16_t bits) {
  std::memcpy(to, &bits, sizeof bits);
}

void add_to_word(std::byte* word, std::uint32_t bits) {
  std::uint32_t x = 0;
  std::memcpy(&x, word, sizeof x);
  x |= bits;
  std::memcpy(word, &x, sizeof x);
}

/// Where a weight is: input k of a chunk, output `out` of its tile.
struct Place {
  int quarter, block;  ///< of 64 inputs; of 32 in it
  int lane, upper;     ///< upper: output 8 + lane / 4
  int pair, second;    ///< of the lane's eight inputs in the block
};

Place place_of(int k, int out) {
  const int of_block = k % 32, of_lane = of_block / 16 * 4 + of_block % 4;
  return {k / 64, k / 32 % 2, out % 8 * 4 + of_block % 16 / 4, out / 8, of_lane / 2, of_lane % 2};
}

void put_weight(QuantType type, std::byte* chunk, int k, int out, std::uint32_t q) {
  const ChunkForm form = chunk_form(type);
  const Place p = place_of(k, out);
  if (type == QuantType::kQ8_0) {
    std::byte* lane = chunk + (k / 32 * 32 + p.lane) * 16;
    const int word = 2 * p.upper + p.pair / 2, byte = p.pair % 2 + 2 * p.second;
    lane[4 * word + byte] = static_cast<std::byte>(q ^ 128);
    return;
  }
  const int word = 2 * p.block + p.upper, n = 4 * word + p.pair;
  add_to_word(chunk + (p.quarter * 32 + p.lane) * 16 + 4 * word, (q & 15) << (4 * p.pair + 16 * p.second));
  std::byte* high = chunk + form.high_at();
  if (type == QuantType::kQ5K) add_to_word(high + p.lane * 16 + 4 * p.quarter, (q >> 4) << (n + 16 * p.second));
  if (type == QuantType::kQ6K) {
    high += p.quarter / 2 * 512 + p.lane * 16 + p.quarter % 2 * 8;
    add_to_word(high + n / 8 * 4, (q >> 4) << (n % 8 * 2 + 16 * p.second));
  }
}

/// `k`: of the block's first input in the chunk.
void put_scales(QuantType type, std::byte* chunk, int k, int out, const FileBlock& block) {
  const ChunkForm form = chunk_form(type);
  std::byte* scales = chunk + form.scales_at() + out * 16;
  std::byte* deltas = chunk + form.deltas_at();
  if (form.inputs == 64) return put_half(deltas + (k / 32 * 16 + out) * 2, block.d);
  if (type == QuantType::kQ6K) {
    std::memcpy(scales, block.s.data(), 16);
    return put_half(deltas + out * 2, block.d);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    scales[2 * i] = static_cast<std::byte>(block.s[i]);
    scales[2 * i + 1] = static_cast<std::byte>(block.t[i]);
  }
  put_half(deltas + out * 4, block.d);
  put_half(deltas + out * 4 + 2, block.m);
}

}  // namespace

std::vector<std::byte> pack(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks) {
  const ChunkForm form = chunk_form(type);
  const int of_block = form.inputs == kFileSuper ? kFileSuper : 32, n_tiles = (n_out + kTileOutputs - 1) / kTileOutputs;
  const auto tile_bytes = static_cast<std::size_t>(n_in / form.inputs * form.bytes());
  std::vector<std::byte> packed(static_cast<std::size_t>(n_tiles) * tile_bytes);
  const std::byte* from = blocks.data();
  FileBlock block{};
  for (int out = 0; out < n_out; ++out) {
    std::byte* tile = packed.data() + static_cast<std::size_t>(out / kTileOutputs) * tile_bytes;
    for (int first = 0; first < n_in; first += of_block, from += file_bytes(type)) {
      read_block(type, from, block);
      std::byte* chunk = tile + first / form.inputs * form.bytes();
      const int k = first % form.inputs;
      for (int i = 0; i < of_block; ++i)
        put_weight(type, chunk, k + i, out % kTileOutputs, block.q[static_cast<std::size_t>(i)]);
      put_scales(type, chunk, k, out % kTileOutputs, block);
    }
  }
  return packed;
}

}  // namespace coppice::matmul::cuda
