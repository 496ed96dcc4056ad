// Writes and reads one head's keys or values in a KV format. Compiled for each instruction set, like the kernels.
// Stateless; safe from any thread.
#pragma once

#include <cstddef>

#include "attention/kv_format.h"

namespace coppice::attention {

/// values: [head_dim] f32; to: head_bytes(format, head_dim).
/// REQUIRES: head_dim is a multiple of 16, at most kMaxRotated.
void encode_head(KvFormat format, int head_dim, const float* values, std::byte* to);

/// The values that kernels see. REQUIRES: as encode_head.
void decode_head(KvFormat format, int head_dim, const std::byte* head, float* values);

}  // namespace coppice::attention
