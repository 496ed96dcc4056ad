// Layer groups: which layers of a model share their blocks, and what that says of the pool's layout.
#pragma once

#include <string>
#include <vector>

#include "attention/kv_format.h"
#include "executor/ggml/graph/graph_builder.h"
#include "kv/types.h"
#include "model/model.h"

namespace coppice::executor {

/// Layers with the same window form a group, full attention first. The first group keeps everything. Throws model::LoadError when the model's heads can't be
/// stored in the format.
std::vector<kv::GroupSpec> make_groups(const model::ModelSpec& spec, attention::KvFormat format);

/// Layer slots of a block: as many as the largest group has layers.
int layer_slots(const std::vector<kv::GroupSpec>& groups);

/// Each layer's place, [n_layers].
std::vector<LayerPlace> layer_places(const std::vector<kv::GroupSpec>& groups, std::size_t n_layers);

/// ExecutorInfo::layout.
std::string describe_layout(const model::ModelSpec& spec, const std::vector<kv::GroupSpec>& groups,
                            attention::KvFormat format, int block_size);

/// Says which groups leave layer slots unused.
void log_unused_slots(const std::vector<kv::GroupSpec>& groups);

}  // namespace coppice::executor
