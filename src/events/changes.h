// Changes: which full blocks the cache has and has no more, as plain data, in the order in which that came about.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/namespace.h"
#include "kv/text.h"
#include "kv/tree_observer.h"
#include "kv/types.h"

namespace coppice::events {

/// Where blocks lie. Each has its own set of them.
enum class Medium : std::uint8_t { kPool, kHost, kDisk };

struct Changes {
  struct One {
    Medium medium = Medium::kPool;
    bool entered = false;     ///< false: it left, and of the rest only `digest` and `space` are told
    bool is_first = false;    ///< no block is before it in its text
    std::uint32_t space = 0;  ///< in `spaces`
    std::uint32_t n_spans = 0;
    kv::Digest digest{};  ///< of its text up to its end
    kv::Digest parent{};  ///< of the text before it
  };

  bool anew = false;  ///< all that was told before is void
  std::vector<One> list;
  std::vector<std::int32_t> symbols;  ///< of those that entered, block_size each: kv::TextView::bits()
  /// Of those that entered, n_spans each; `first` is counted from the block's beginning.
  std::vector<kv::MediumSpan> spans;
  std::vector<kv::Namespace> spaces;

  /// What throws leaves them unusable.
  void add_entered(Medium medium, const kv::TreeBlock& block);
  void add_left(Medium medium, const kv::Digest& digest, const kv::Namespace& ns);

  bool empty() const { return !anew && list.empty(); }
};

}  // namespace coppice::events
