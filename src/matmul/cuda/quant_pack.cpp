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
struct WeightIndex {
  int quarter, block;  ///< of 64 inputs; of 32 in it
  int lane;
  int word, byte;  ///< of the lane's four words in the block
};

WeightIndex index_of(int k, int out) {
  return {k / 64, k / 32 % 2, out % 8 * 4 + k % 8 / 2, k % 32 / 16 * 2 + out / 8, k % 16 / 8 * 2 + k % 2};
}

/// 32 numbers from input k of a chunk on.
void put_numbers(std::byte* chunk, int k, int out, const std::byte* from) {
  for (int i = k; i < k + 32; ++i, from += 2) {
    const WeightIndex p = index_of(i, out);
    const int of_lane = 4 * (p.byte / 2 * 2 + p.word % 2) + p.byte % 2 * 2;  // the register, and which half of it
    std::memcpy(chunk + (i / 16 * 32 + p.lane) * 16 + of_lane, from, 2);
  }
}

void put_weight(QuantType type, std::byte* chunk, int k, int out, std::uint32_t q) {
  const ChunkForm form = chunk_form(type);
  const WeightIndex p = index_of(k, out);
  if (type == QuantType::kQ8_0) {
    chunk[(p.block * 32 + p.lane) * 16 + 4 * p.word + p.byte] = static_cast<std::byte>(q ^ 128);
    return;
  }
  const int shift = type == QuantType::kMxfp4 ? 4 * p.byte + 16 * p.block : 8 * p.byte + 4 * p.block;
  add_to_word(chunk + (p.quarter * 32 + p.lane) * 16 + 4 * p.word, (q & 15) << shift);
  std::byte* high = chunk + form.high_at() + p.lane * 16;
  if (type == QuantType::kQ5K) add_to_word(high + 4 * p.quarter, (q >> 4) << (8 * p.byte + 4 * p.block + p.word));
  if (type == QuantType::kQ6K)
    add_to_word(high + p.quarter / 2 * 512 + p.quarter % 2 * 8 + p.block * 4, (q >> 4) << (8 * p.byte + 2 * p.word));
}

/// `k`: of the block's first input in the chunk.
void put_scales(QuantType type, std::byte* chunk, int k, int out, const FileBlock& block) {
  const ChunkForm form = chunk_form(type);
  std::byte* scales = chunk + form.scales_at() + out * 16;
  std::byte* deltas = chunk + form.deltas_at();
  if (type == QuantType::kMxfp4) {
    deltas[k / 32 * 16 + out] = static_cast<std::byte>(block.d);
    return;
  }
  if (form.inputs == 64) return put_half(deltas + (k / 32 * 16 + out) * 2, block.d);
  if (type == QuantType::kQ6K) {
    std::memcpy(scales, block.s.data(), 16);
    return put_half(deltas + out * 2, block.d);
  }
  std::memcpy(scales, block.s.data(), 8);
  std::memcpy(scales + 8, block.t.data(), 8);
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
      std::byte* chunk = tile + first / form.inputs * form.bytes();
      const int k = first % form.inputs;
      if (type == QuantType::kBf16) {
        put_numbers(chunk, k, out % kTileOutputs, from);
        continue;
      }
      read_block(type, from, block);
      for (int i = 0; i < of_block; ++i)
        put_weight(type, chunk, k + i, out % kTileOutputs, block.q[static_cast<std::size_t>(i)]);
      put_scales(type, chunk, k, out % kTileOutputs, block);
    }
  }
  return packed;
}

std::vector<std::byte> pack_pairs(QuantType type, int n_in, int n, std::span<const std::byte> gate,
                                  std::span<const std::byte> up) {
  const std::size_t of_tile = gate.size() / static_cast<std::size_t>(n) * kTilePairs;
  std::vector<std::byte> rows;
  rows.reserve(2 * gate.size());
  for (std::size_t at = 0; at < gate.size(); at += of_tile) {
    for (const std::span<const std::byte> from : {gate, up}) {
      const auto some = from.subspan(at, of_tile);
      rows.insert(rows.end(), some.begin(), some.end());
    }
  }
  return pack(type, n_in, 2 * n, rows);
}

}  // namespace coppice::matmul::cuda
