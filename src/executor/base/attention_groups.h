// AttentionGroup: a layer group of the pool as attention sees it, and where in the pool a layer's keys and values lie.
// Plain data.
#pragma once

#include <cstddef>
#include <vector>

#include "attention/layout.h"
#include "executor/base/page_layout.h"
#include "kv/types.h"
#include "model/model.h"

namespace coppice::executor {

/// Its layers have the same heads.
struct AttentionGroup {
  kv::GroupSpec kv;
  attention::HeadShape heads;
  std::size_t n_readers = 0;  ///< layers that attend: those of the group, and those that read their keys and values

  /// What all layers read of one token.
  std::size_t bytes_per_token() const { return kv.bytes_per_token * n_readers / kv.layers.size(); }
};

/// Of all groups but the recurrent one. REQUIRES: layers of a group have keys of one shape. Throws model::LoadError
/// when their numbers of heads differ.
std::vector<AttentionGroup> attention_groups(const model::ModelSpec& spec, const std::vector<kv::GroupSpec>& groups);

/// Where the keys and values lie that a layer reads: in the blocks of a group, as the pool's layer.
struct LayerPlace {
  std::size_t group = 0;
  int layer = 0;
};

/// [layers]; of recurrent ones no place. REQUIRES: the layout is the spec's.
std::vector<LayerPlace> layer_places(const model::ModelSpec& spec, const PageLayout& layout);

}  // namespace coppice::executor
