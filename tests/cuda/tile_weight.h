// A packed weight as products of many rows take it: rounded to bf16 once, from f32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "matmul/quant_weights.h"

namespace coppice::test {

/// bf16, half to even. The kernels make a weight of Q4_K, Q5_K or Q6_K in two steps in f32, so that a value beside the
/// middle of two bf16 numbers may become either: then `slack` is their distance, else 0.
struct TileWeight {
  double value, slack;

  TileWeight(matmul::QuantType type, const Weight& weight) {
    using matmul::QuantType;
    const double exact = weight.scaled() + weight.offset();
    const auto number = static_cast<float>(exact);
    auto bits = std::bit_cast<std::uint32_t>(number);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    value = std::bit_cast<float>(bits);
    slack = 0.0;
    if (type != QuantType::kQ4K && type != QuantType::kQ5K && type != QuantType::kQ6K) return;  // no step rounds
    // w = d s (q + 128) + (m t - 128 d s): both sums are rounded. Q6_K: its 160 leaves only the last one.
    const double steps = 128 * std::abs(static_cast<double>(weight.d) * weight.s) + std::abs(weight.offset());
    const double step_error = std::ldexp(steps + std::abs(exact), -24);
    int exponent = 0;
    (void)std::frexp(exact, &exponent);
    const double apart = std::ldexp(1.0, exponent - 8);  // 8 bits: of [0.5, 1) neighbours are 2^-8 apart
    const double from_middle = std::abs(std::abs(exact - value) - apart / 2);
    if (from_middle <= step_error) slack = apart;
  }
};

}  // namespace coppice::test
