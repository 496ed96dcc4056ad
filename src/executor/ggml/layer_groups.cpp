#include "executor/ggml/layer_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>

namespace coppice::executor {

using attention::KvFormat;

std::vector<kv::GroupSpec> make_groups(const model::ModelSpec& spec, KvFormat format) {
  if (format != KvFormat::kF16 && (spec.head_dim % 16 != 0 || spec.head_dim > attention::kMaxRotated)) {
    throw model::LoadError(fmt::format("heads of {} values can't be stored as {}; --kv-format f16 can store them",
                                       spec.head_dim, format_name(format)));
  }
  std::map<int, std::vector<int>> by_window;
  for (std::size_t i = 0; i < spec.layers.size(); ++i)
    by_window[spec.layers[i].mixer.window].push_back(static_cast<int>(i));
  std::vector<kv::GroupSpec> groups;
  for (auto& [window, layers] : by_window) {
    const std::size_t heads = 2 * static_cast<std::size_t>(spec.n_kv_head) * layers.size();  // keys and values
    const std::size_t bytes = heads * attention::head_bytes(format, spec.head_dim);
    // The tree stands on a group that keeps everything: in a model of sliding layers alone these do.
    const bool full = groups.empty();
    groups.push_back({full ? kv::GroupKind::kFull : kv::GroupKind::kSliding, window, std::move(layers), bytes});
  }
  return groups;
}

int layer_slots(const std::vector<kv::GroupSpec>& groups) {
  std::size_t slots = 0;
  for (const kv::GroupSpec& g : groups) slots = std::max(slots, g.layers.size());
  return static_cast<int>(slots);
}

std::vector<LayerPlace> layer_places(const std::vector<kv::GroupSpec>& groups, std::size_t n_layers) {
  std::vector<LayerPlace> places(n_layers);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t slot = 0; slot < groups[g].layers.size(); ++slot) {
      places[static_cast<std::size_t>(groups[g].layers[slot])] = {g, static_cast<int>(slot)};
    }
  }
  return places;
}

std::string describe_layout(const model::ModelSpec& spec, const std::vector<kv::GroupSpec>& groups, KvFormat format,
                            int block_size) {
  std::string text = fmt::format("{};[slot,head,dim];block={};heads={};dim={}", format_name(format), block_size,
                                 spec.n_kv_head, spec.head_dim);
  for (const model::RopeSpec& rope : spec.ropes) {
    text += fmt::format(";rope={},{},{},{},{}", rope.halves ? "halves" : "neighbours", rope.dims, rope.base,
                        rope.freq_scale, rope.freq_factors != model::kNoTensor);
    if (rope.yarn) {
      text += fmt::format(",yarn,{},{},{}", rope.yarn->beta_fast, rope.yarn->beta_slow, rope.yarn->original_context);
    }
    if (rope.magnitude != 1) text += fmt::format(",magnitude {}", rope.magnitude);
  }
  for (const kv::GroupSpec& g : groups) {
    text += fmt::format(";{}{}:{}", g.kind == kv::GroupKind::kFull ? "full" : "sliding", g.window,
                        fmt::join(g.layers, ","));
  }
  return text;
}

void log_unused_slots(const std::vector<kv::GroupSpec>& groups) {
  const int slots = layer_slots(groups);
  for (const kv::GroupSpec& g : groups) {
    const int unused = slots - static_cast<int>(g.layers.size());
    if (unused == 0) continue;
    spdlog::info("blocks of the {} group use {} of {} layer slots: {:.0f} % of their bytes lie idle",
                 g.kind == kv::GroupKind::kFull ? "full-attention" : fmt::format("window {}", g.window),
                 g.layers.size(), slots, 100.0 * unused / slots);
  }
}

}  // namespace coppice::executor
