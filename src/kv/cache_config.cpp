#include "kv/cache_config.h"

#include <stdexcept>
#include <utility>

namespace coppice::kv {

CacheConfig checked(CacheConfig config) {
  const auto require = [](bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
  };
  require(config.block_size > 0, "kv cache: block_size must be positive");
  require(config.num_blocks > 1, "kv cache: the pool needs at least one block besides the null block");
  require(config.max_extend > 0, "kv cache: max_extend must be positive");
  require(!config.groups.empty() && config.groups[0].kind == GroupKind::kFull,
          "kv cache: layer group 0 must be full attention");
  for (const GroupSpec& group : config.groups) {
    require(group.kind != GroupKind::kSliding || group.window > 0, "kv cache: a sliding group needs a window");
  }
  return config;
}

}  // namespace coppice::kv
