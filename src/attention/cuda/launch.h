// The kernel that needs no wgmma, for tree_attention.cu to choose.
#pragma once

#include "attention/cuda/tree_attention.h"

namespace coppice::attention::cuda {

/// As launch_tree_attention, on GPUs from 8.0 on.
const char* launch_with_mma(const TreeAttention& args, int n_workers, const coppice::cuda::Gpu& gpu);

}  // namespace coppice::attention::cuda
