// Convolutions along a sequence, of each channel by itself, over a few rows: the last inputs are part of the sequence's
// state. Compiled for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::recurrent {

enum class ConvForm : std::uint8_t {
  kSilu,   ///< y = silu(conv(x) + bias)
  kGated,  ///< a row of x is b, c and x, n_channels each: y = c * conv(b * x)
};

/// Rows of one sequence.
struct ConvRows {
  ConvForm form;
  int n_taps;            ///< 2 to 4; rows that a result reads, its own included
  int n_channels;        ///< a multiple of 16
  int n;                 ///< rows, at least 1
  const float* x;        ///< [n, n_channels]; kGated: [n, 3 * n_channels]
  const float* weights;  ///< [n_channels, n_taps], the last one for the row itself
  const float* bias;     ///< [n_channels]; nullptr: none
  const float* before;   ///< [n_taps - 1, n_channels], inputs of the rows before; nullptr: zeros
  float* after;          ///< [n_taps - 1, n_channels], inputs of the last rows. May be `before`
  float* y;              ///< [n, n_channels]
};

/// Does channels [begin, end), both multiples of 16. Thread safe with others that do other channels.
void convolve(const ConvRows& rows, int begin, int end);

}  // namespace coppice::recurrent
