// The scalar reference: attention of a step straight from the block tables, one row, one head and one key at a time, in
// double precision. Knows neither runs nor tiles nor partial states; kernels are tested against it.
#pragma once

#include <span>
#include <vector>

#include "attention/layout.h"
#include "attention/plan/share_plan.h"

namespace coppice::attention {

/// What one head of a slot's row stands for, decoded value by value. base: pool.keys or pool.values.
std::vector<double> stored_head(const HeadShape& heads, const PoolView& pool, const std::byte* base, kv::Slot slot,
                                int kv_head);

/// q, out: [n_rows, n_head, head_dim] f32. sinks: [n_head], scores that weigh in each row's softmax and have no value;
/// empty: none.
void attend_reference(const HeadShape& heads, const PoolView& pool, const kv::GroupSpec& group,
                      std::span<const SequenceRows> sequences, std::span<const float> q, std::span<float> out,
                      std::span<const float> sinks = {});

}  // namespace coppice::attention
