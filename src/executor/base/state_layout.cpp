#include "executor/base/state_layout.h"

#include <algorithm>

#include "check/assert.h"

namespace coppice::executor {

namespace {

std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * sizeof(float);
}

StateLayer state_of(const model::LayerSpec& layer) {
  if (const auto* mixer = std::get_if<model::ShortConvSpec>(&layer.recurrent)) {
    return {.conv_bytes = product(mixer->conv.n_taps - 1, mixer->conv.n_channels)};
  }
  if (const auto* mixer = std::get_if<model::LinearAttentionSpec>(&layer.recurrent)) {
    return {.conv_bytes = product(mixer->conv.n_taps - 1, mixer->conv.n_channels),
            .n_heads = mixer->n_heads,
            .head_bytes = product(mixer->key_dim, mixer->value_dim)};
  }
  return {};
}

/// Hands out places one behind the other.
class Places {
 public:
  explicit Places(std::size_t page_bytes) : page_bytes_(page_bytes) {}

  StateLayout::PageOffset take(std::size_t bytes) {
    if (pages_ == 0 || at_ + bytes > page_bytes_) {
      ++pages_;
      at_ = 0;
    }
    const StateLayout::PageOffset place{pages_ - 1, at_};
    at_ += bytes;
    return place;
  }
  int pages() const { return pages_; }

 private:
  std::size_t page_bytes_, at_ = 0;
  int pages_ = 0;
};

}  // namespace

std::vector<StateLayer> state_layers(const model::ModelSpec& spec) {
  std::vector<StateLayer> layers;
  for (const model::LayerSpec& layer : spec.layers) layers.push_back(state_of(layer));
  return layers;
}

std::size_t largest_part(std::span<const StateLayer> layers) {
  std::size_t largest = 0;
  for (const StateLayer& layer : layers) largest = std::max({largest, layer.conv_bytes, layer.head_bytes});
  return largest;
}

StateLayout make_state_layout(std::span<const StateLayer> layers, std::size_t page_bytes) {
  COPPICE_ASSERT(page_bytes >= largest_part(layers));
  StateLayout layout;
  if (largest_part(layers) == 0) return layout;
  layout.layers.resize(layers.size());
  // All matrices first: a page is often a whole number of them, and of nothing else.
  Places places(page_bytes);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (int h = 0; h < layers[i].n_heads; ++h) layout.layers[i].heads.push_back(places.take(layers[i].head_bytes));
    layout.bytes += static_cast<std::size_t>(layers[i].n_heads) * layers[i].head_bytes + layers[i].conv_bytes;
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].conv_bytes > 0) layout.layers[i].conv = places.take(layers[i].conv_bytes);
  }
  layout.n_pages = places.pages();
  return layout;
}

}  // namespace coppice::executor
