#include "kv/cache_config.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace coppice::kv {

namespace {

// How far kept states of one text are apart, in tokens (docs/decisions.md, "Recurrent states in the tree").
std::int32_t stride_for(const CacheConfig& config) {
  constexpr std::int64_t kClosest = 1024;  // a state takes as much as thousands of tokens
  constexpr std::int64_t kUnits = 64;      // a pool that holds fewer keeps them further apart
  const std::int64_t units = std::max<std::int64_t>((config.num_blocks - 1) / config.state_pages, 1);
  const std::int64_t tokens = std::max(kClosest, kClosest * kUnits / units);
  return static_cast<std::int32_t>((tokens + config.block_size - 1) / config.block_size * config.block_size);
}

}  // namespace

CacheConfig checked(CacheConfig config) {
  const auto require = [](bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
  };
  require(config.block_size > 0, "kv cache: block_size must be positive");
  require(config.num_blocks > 1, "kv cache: the pool needs at least one block besides the null block");
  require(config.max_extend > 0, "kv cache: max_extend must be positive");
  require(!config.groups.empty() && config.groups[0].kind == GroupKind::kFull,
          "kv cache: layer group 0 must be full attention");
  if (n_table_groups(config.groups) < config.groups.size()) {
    config.state_pages = config.groups.back().state_pages;
    require(config.state_pages > 0, "kv cache: a state needs a page at least");
    config.groups.pop_back();
    if (config.state_stride == 0) config.state_stride = stride_for(config);
    require(config.state_stride % config.block_size == 0, "kv cache: states are kept at whole blocks");
  }
  for (const GroupSpec& group : config.groups) {
    require(group.kind != GroupKind::kRecurrent, "kv cache: the recurrent layer group must be the last");
    require(group.kind != GroupKind::kSliding || group.window > 0, "kv cache: a sliding group needs a window");
  }
  return config;
}

}  // namespace coppice::kv
