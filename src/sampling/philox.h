// A generator whose n-th number depends on the seed and n alone (Philox 4x32-10; Salmon et al. 2011, "Parallel random
// numbers: as easy as 1, 2, 3"): whoever draws a token again draws the same one, on a CPU or a GPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define COPPICE_ANYWHERE __host__ __device__
#else
#define COPPICE_ANYWHERE
#endif

namespace coppice::sampling {

struct Philox {
  std::uint32_t words[4];
};

/// Block `counter` of a seed's numbers, 128 bits.
COPPICE_ANYWHERE constexpr Philox philox(std::uint64_t seed, std::uint64_t counter) {
  Philox x{{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}};
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * x.words[0], b = std::uint64_t{0xCD9E8D57} * x.words[2];
    x = {{static_cast<std::uint32_t>(b >> 32) ^ x.words[1] ^ key0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ x.words[3] ^ key1, static_cast<std::uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return x;
}

/// 64 of a block's bits.
COPPICE_ANYWHERE constexpr std::uint64_t philox_64(std::uint64_t seed, std::uint64_t counter) {
  const Philox x = philox(seed, counter);
  return x.words[0] | std::uint64_t{x.words[1]} << 32;
}

}  // namespace coppice::sampling
