#include "model/layer_pattern.h"

#include <algorithm>
#include <ranges>
#include <span>

namespace coppice::model {

namespace {

constexpr const char* kWindow = "attention.sliding_window";
constexpr const char* kPattern = "attention.sliding_window_pattern";

}  // namespace

int window_of(const Metadata& m, const ModelSpec& spec, int otherwise) {
  const std::int64_t window = m.file().integer(m.key(kWindow)).value_or(otherwise);
  if (window < 0) m.refuse("metadata {} = {} is out of range", m.key(kWindow), window);
  return window >= spec.context_length ? 0 : static_cast<int>(window);
}

void set_sliding_layers(const Metadata& m, ModelSpec& spec, const SlidingLayers& sliding) {
  const auto n = static_cast<int>(spec.layers.size());
  if (m.file().integer(m.key(kWindow)).value_or(sliding.window) == 0) return;
  const auto slides = m.list(kPattern, n);
  const int full_every = slides ? 1 : m.size(kPattern, 1 << 12, sliding.full_every);
  const auto rope = std::ranges::find(spec.ropes, sliding.rope);
  const auto index = static_cast<int>(rope - spec.ropes.begin());
  if (rope == spec.ropes.end()) spec.ropes.push_back(sliding.rope);
  for (int i = 0; i < n; ++i) {
    if (slides ? (*slides)[static_cast<std::size_t>(i)] == 0 : i % full_every == full_every - 1) continue;
    AttentionSpec& mixer = spec.layers[static_cast<std::size_t>(i)].mixer;
    mixer.window = sliding.window;
    mixer.chunked = sliding.chunked && sliding.window > 0;
    mixer.rope = index;
  }
}

void set_shared_layers(const Metadata& m, ModelSpec& spec) {
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    AttentionSpec& mixer = spec.layers[i].mixer;
    const int dims = mixer.rope == AttentionSpec::kNoRope ? 0 : spec.ropes[static_cast<std::size_t>(mixer.rope)].dims;
    if (dims > mixer.heads.head_dim) {
      m.refuse("{} values of a head turn in layer {}, whose heads have {}", dims, i, mixer.heads.head_dim);
    }
    if (mixer.k.weight != kNoTensor) continue;
    const auto before = std::span(spec.layers).first(i) | std::views::reverse;
    const auto owner = std::ranges::find_if(before, [&mixer](const LayerSpec& layer) {
      const AttentionSpec& other = layer.mixer;
      return other.owns_kv() && other.window == mixer.window && other.chunked == mixer.chunked &&
             other.rope == mixer.rope && other.heads == mixer.heads;
    });
    if (owner == before.end()) m.refuse("layer {} has no keys and values, and no layer before it has fitting ones", i);
    mixer.kv_layer = static_cast<int>(&*owner - spec.layers.data());
  }
}

}  // namespace coppice::model
