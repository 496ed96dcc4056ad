// The benchmark's own backends: decode over a block table, in place or through a copy. All run attend_block().
//
//   fused        in place; rows with the same blocks read each block once
//   fused-alone  in place; every sequence for itself (differs from fused when blocks are shared)
//   gather       each worker copies all of its sequences' blocks together, then attends to the copies
//   gather-each  the same a sequence at a time: a short copy is still in the cache when it is read
//   copy         the copying alone
//
// Sequences are divided among the workers; fewer sequences than workers are cut along their keys and merged.
#pragma once

#include "backend.h"

namespace coppice::bench {

enum class Path { kFused, kFusedAlone, kGather, kGatherEach, kCopy };

std::unique_ptr<Backend> make_block_loop(Path path, const BackendOptions& options);

}  // namespace coppice::bench
