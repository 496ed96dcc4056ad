// StateLayout: where in the pages of a state each part of it lies. Plain data.
//
// A recurrent layer keeps, in f32, the last inputs of its convolution ([n_taps - 1, n_channels]) and for each head a
// matrix
// ([key_dim, value_dim]). No part crosses the border of two pages: pages are at least as large as the largest part.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/model.h"

namespace coppice::executor {

/// What a layer keeps beside, or in place of, keys and values.
struct StateLayer {
  std::size_t conv_bytes = 0;  ///< 0: nothing at all
  int n_heads = 0;
  std::size_t head_bytes = 0;
};

struct StateLayout {
  struct PageOffset {
    int page = 0;
    std::size_t offset = 0;  ///< in the page
  };
  struct Layer {
    PageOffset conv;
    std::vector<PageOffset> heads;
  };
  int n_pages = 0;
  std::size_t bytes = 0;      ///< of a state, without what of its pages lies idle
  std::vector<Layer> layers;  ///< as the model's; empty: no layer is recurrent
};

std::vector<StateLayer> state_layers(const model::ModelSpec& spec);

/// Bytes of the largest part of all layers; 0: no layer is recurrent.
std::size_t largest_part(std::span<const StateLayer> layers);

/// REQUIRES: page_bytes >= largest_part(layers).
StateLayout make_state_layout(std::span<const StateLayer> layers, std::size_t page_bytes);

}  // namespace coppice::executor
