#include "executor/base/page_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace coppice::executor {

namespace {

/// Window, whether it moves in chunks, key heads, head size: layers that agree in these may share a page.
using Kind = std::tuple<int, bool, int, int>;

/// A page grows by up to this part of it where that makes room for a layer more.
constexpr std::size_t kGrowth = 50;

/// Of one slot's keys (or values).
std::size_t row_bytes(const Kind& kind, attention::KvFormat format) {
  const auto [window, chunked, n_kv_head, head_dim] = kind;
  if (format != attention::KvFormat::kF16 && (head_dim % 16 != 0 || head_dim > attention::kMaxRotated)) {
    throw model::LoadError(fmt::format("heads of {} values can't be stored as {}; --kv-format f16 can store them",
                                       head_dim, format_name(format)));
  }
  return attention::head_bytes(format, head_dim) * static_cast<std::size_t>(n_kv_head);
}

std::string name_of(const kv::GroupSpec& group) {
  return group.window == 0 ? "all positions" : fmt::format("a window of {}", group.window);
}

}  // namespace

std::vector<KvLayer> kv_layers(const model::ModelSpec& spec) {
  std::vector<KvLayer> layers;
  for (const model::LayerSpec& layer : spec.layers) {
    const model::HeadsSpec& heads = layer.mixer.heads;
    layers.push_back({layer.mixer.window, layer.mixer.owns_kv() ? heads.n_kv_head : 0, heads.head_dim,
                      layer.mixer.chunked, layer.mixer.causal});
  }
  return layers;
}

PageLayout make_page_layout(std::span<const KvLayer> layers, attention::KvFormat format, int block_size,
                            std::span<const StateLayer> states) {
  PageLayout layout{.format = format, .block_size = block_size};
  layout.layers.resize(layers.size());
  std::map<Kind, std::vector<int>> kinds;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& [window, n_kv_head, head_dim, chunked, causal] = layers[i];
    if (n_kv_head > 0) kinds[{window, chunked, n_kv_head, head_dim}].push_back(static_cast<int>(i));
  }
  const auto layer_bytes = [&](const Kind& kind) {
    return 2 * row_bytes(kind, format) * static_cast<std::size_t>(block_size);
  };
  layout.page_bytes = layer_bytes(kinds.begin()->first) * kinds.begin()->second.size();
  layout.page_bytes = std::max(layout.page_bytes, largest_part(states));
  for (const auto& [kind, ids] : kinds) {
    const std::size_t bytes = layer_bytes(kind), fit = layout.page_bytes / bytes, more = (fit + 1) * bytes;
    const bool nearly = ids.size() > fit && more - layout.page_bytes <= layout.page_bytes / kGrowth;
    if (fit == 0 || nearly) layout.page_bytes = more;
  }
  for (const auto& [kind, ids] : kinds) {
    const int window = std::get<0>(kind);
    // The tree stands on a group that keeps everything: in a model of sliding layers alone it is the first window's.
    const bool full = layout.groups.empty();
    if (!full && window == layout.groups[0].window) {
      throw model::LoadError("layers that keep all positions have heads of different shapes, which is not built yet");
    }
    const std::size_t bytes = layer_bytes(kind), fit = layout.page_bytes / bytes;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i % fit == 0) {
        layout.groups.push_back(
            {full ? kv::GroupKind::kFull : kv::GroupKind::kSliding, window, {}, 0, std::get<1>(kind)});
      }
      kv::GroupSpec& group = layout.groups.back();
      group.layers.push_back(ids[i]);
      group.causal = layers[static_cast<std::size_t>(ids[i])].causal;
      group.bytes_per_token += bytes / static_cast<std::size_t>(block_size);
      layout.layers[static_cast<std::size_t>(ids[i])] = {static_cast<int>(layout.groups.size()) - 1,
                                                         row_bytes(kind, format), i % fit * bytes};
    }
  }
  layout.state = make_state_layout(states, layout.page_bytes);
  if (layout.state.n_pages > 0) {
    kv::GroupSpec& group = layout.groups.emplace_back();
    group.kind = kv::GroupKind::kRecurrent;
    group.state_pages = layout.state.n_pages;
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i].conv_bytes > 0) group.layers.push_back(static_cast<int>(i));
    }
  }
  return layout;
}

std::vector<std::string> describe_pages(const PageLayout& layout) {
  std::vector<std::string> lines;
  const auto tables_end = layout.groups.begin() + layout.n_tables();
  for (auto g = layout.groups.begin(); g != tables_end;) {
    const auto end = std::find_if(g, tables_end, [&](const kv::GroupSpec& o) { return !o.keeps_as(*g); });
    const auto pages = static_cast<std::size_t>(end - g);
    const std::string name = name_of(*g);
    std::size_t n_layers = 0, used = 0;
    for (; g != end; ++g) {
      n_layers += g->layers.size();
      used += g->bytes_per_token * static_cast<std::size_t>(layout.block_size);
    }
    const std::size_t bytes = pages * layout.page_bytes;
    lines.push_back(fmt::format("layers that see {}: {}, in {} page{} for {} tokens; {:.3g} % of their bytes idle",
                                name, n_layers, pages, pages == 1 ? "" : "s", layout.block_size,
                                100.0 * static_cast<double>(bytes - used) / static_cast<double>(bytes)));
  }
  if (const int pages = layout.state.n_pages; pages > 0) {
    const std::size_t bytes = static_cast<std::size_t>(pages) * layout.page_bytes;
    lines.push_back(fmt::format("recurrent layers: {}; a state takes {} page{}, {:.4g} MiB; {:.3g} % of them idle",
                                layout.groups.back().layers.size(), pages, pages == 1 ? "" : "s",
                                static_cast<double>(bytes) / (1 << 20),
                                100.0 * static_cast<double>(bytes - layout.state.bytes) / static_cast<double>(bytes)));
  }
  return lines;
}

std::string describe_layout(const PageLayout& layout, const model::ModelSpec& spec, std::string_view order) {
  std::string text = order.empty() ? fmt::format("{};[layer,keys|values,slot,head,dim]", format_name(layout.format))
                                   : std::string(order);
  text += fmt::format(";block={}", layout.block_size);
  for (const model::RopeSpec& rope : spec.ropes) {
    text += fmt::format(";rope={},{},{},{},{}", rope.halves ? "halves" : "neighbours", rope.dims, rope.base,
                        rope.freq_scale, rope.freq_factors != model::kNoTensor);
    if (rope.yarn) {
      text += fmt::format(",yarn,{},{},{}", rope.yarn->beta_fast, rope.yarn->beta_slow, rope.yarn->original_context);
      if (!rope.yarn->whole_pairs) text += ",parts of pairs";
    }
    if (rope.sections) {
      const auto& [time, height, width] = rope.sections->pairs;
      text += fmt::format(",{} of {},{},{} pairs", rope.sections->interleaved ? "turns" : "parts", time, height, width);
    }
    if (rope.magnitude != 1) text += fmt::format(",magnitude {}", rope.magnitude);
  }
  const std::vector<KvLayer> layers = kv_layers(spec);
  for (const kv::GroupSpec& g : layout.groups) {
    if (g.kind == kv::GroupKind::kRecurrent) {
      text += fmt::format(";states f32 [head,key,value],[tap,channel],pages={}:{}", g.state_pages,
                          fmt::join(g.layers, ","));
      continue;
    }
    const KvLayer& layer = layers[static_cast<std::size_t>(g.layers.front())];
    text += fmt::format(";{}{}{},heads={},dim={}:{}", g.kind == kv::GroupKind::kFull ? "full" : "sliding", g.window,
                        g.chunked ? "chunked" : "", layer.n_kv_head, layer.head_dim, fmt::join(g.layers, ","));
  }
  return text;
}

}  // namespace coppice::executor
