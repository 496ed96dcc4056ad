#include "model/layer_pattern.h"

#include <algorithm>

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
    mixer.rope = index;
  }
}

}  // namespace coppice::model
