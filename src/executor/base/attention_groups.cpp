#include "executor/base/attention_groups.h"

#include <algorithm>

namespace coppice::executor {

std::vector<AttentionGroup> attention_groups(const model::ModelSpec& spec, const std::vector<kv::GroupSpec>& groups) {
  std::vector<AttentionGroup> all;
  for (const kv::GroupSpec& g : groups) {
    if (g.kind == kv::GroupKind::kRecurrent) continue;
    const auto heads_of = [&spec](int layer) { return spec.layers[static_cast<std::size_t>(layer)].mixer.heads; };
    const model::HeadsSpec heads = heads_of(g.layers.front());
    if (std::ranges::any_of(g.layers, [&](int layer) { return heads_of(layer) != heads; })) {
      throw model::LoadError("layers that differ only in how many heads read a key are not built yet");
    }
    const attention::HeadShape shape{heads.n_head, heads.n_kv_head, heads.head_dim, spec.attention_scale,
                                     spec.attention_softcap};
    const auto readers = std::ranges::count_if(spec.layers, [&g](const model::LayerSpec& layer) {
      return std::ranges::count(g.layers, layer.mixer.kv_layer) > 0;
    });
    all.push_back({g, shape, g.layers.size() + static_cast<std::size_t>(readers)});
  }
  return all;
}

std::vector<LayerPlace> layer_places(const model::ModelSpec& spec, const PageLayout& layout) {
  std::vector<LayerPlace> places;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.mixer.attends()) {
      places.emplace_back();
      continue;
    }
    const int owner = layer.mixer.owns_kv() ? static_cast<int>(places.size()) : layer.mixer.kv_layer;
    places.push_back({static_cast<std::size_t>(layout.layers[static_cast<std::size_t>(owner)].group), owner});
  }
  return places;
}

}  // namespace coppice::executor
