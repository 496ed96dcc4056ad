#include "model/layer_pattern.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ranges>
#include <span>

namespace coppice::model {

namespace {

constexpr const char* kWindow = "attention.sliding_window";
constexpr const char* kPattern = "attention.sliding_window_pattern";

void check_numbers(const Metadata& m, const RopeSpec& rope) {
  if (rope.yarn && (!(rope.yarn->beta_fast > 0) || !(rope.yarn->beta_slow > 0) || !(rope.base > 1))) {
    m.refuse("YaRN from {} to {} turns with the base {} makes no sense", rope.yarn->beta_slow, rope.yarn->beta_fast,
             rope.base);
  }
  const bool scales = rope.freq_scale > 0 && std::isfinite(rope.freq_scale);
  if (rope.base > 0 && scales && rope.magnitude > 0 && std::isfinite(rope.magnitude)) return;
  m.refuse("rope base {}, scale {} and magnitude {} make no sense", rope.base, rope.freq_scale, rope.magnitude);
}

/// A rope's factors were read for the layers that see everything; others may turn fewer values, or more.
void check_rope(const Metadata& m, const RopeSpec& rope, const HeadsSpec& heads, std::size_t layer) {
  if (rope.dims > heads.head_dim) {
    m.refuse("{} values of a head turn in layer {}, whose heads have {}", rope.dims, layer, heads.head_dim);
  }
  if (rope.freq_factors == kNoTensor) return;
  const TensorInfo& tensor = m.file().tensors()[static_cast<std::size_t>(rope.freq_factors)];
  const std::int64_t factors = tensor.shape[0];
  if (factors != rope.dims / 2) {
    m.refuse("{} values of a head turn in layer {}, but the file has factors for {} pairs", rope.dims, layer, factors);
  }
  const auto bytes = m.file().tensor_bytes(tensor);
  if (bytes.size() != static_cast<std::size_t>(factors) * sizeof(float)) m.refuse("tensor {} is not f32", tensor.name);
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
    float factor = 0;
    std::memcpy(&factor, &bytes[i], sizeof(factor));
    // They divide angles: all answers would be NaN.
    if (!(factor > 0) || !std::isfinite(factor)) m.refuse("tensor {} has the factor {}", tensor.name, factor);
  }
}

bool keep_the_same(const AttentionSpec& a, const AttentionSpec& b) {
  return a.window == b.window && a.chunked == b.chunked;
}

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
    if (!mixer.attends() || mixer.k.weight != kNoTensor) continue;
    const auto before = std::span(spec.layers).first(i) | std::views::reverse;
    const auto owner = std::ranges::find_if(before, [&mixer](const LayerSpec& layer) {
      const AttentionSpec& other = layer.mixer;
      return other.owns_kv() && keep_the_same(other, mixer) && other.rope == mixer.rope && other.heads == mixer.heads;
    });
    if (owner == before.end()) m.refuse("layer {} has no keys and values, and no layer before it has fitting ones", i);
    mixer.kv_layer = static_cast<int>(&*owner - spec.layers.data());
  }
}

void check_layers(const Metadata& m, const ModelSpec& spec) {
  for (const RopeSpec& rope : spec.ropes) check_numbers(m, rope);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& mixer = spec.layers[i].mixer;
    if (!mixer.attends()) continue;
    if (mixer.rope != AttentionSpec::kNoRope) {
      check_rope(m, spec.ropes[static_cast<std::size_t>(mixer.rope)], mixer.heads, i);
    }
    if (!mixer.owns_kv()) continue;
    const auto first = std::ranges::find_if(spec.layers, [&mixer](const LayerSpec& layer) {
      return layer.mixer.owns_kv() && keep_the_same(layer.mixer, mixer);
    });
    const HeadsSpec &a = first->mixer.heads, &b = mixer.heads;
    if (a == b) continue;
    m.refuse(
        "layers {} and {} see the same positions, but have other heads: {} over {} key heads of {} values, and {} over "
        "{} of {}; "
        "that is not built yet",
        first - spec.layers.begin(), i, a.n_head, a.n_kv_head, a.head_dim, b.n_head, b.n_kv_head, b.head_dim);
  }
}

}  // namespace coppice::model
