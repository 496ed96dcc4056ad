#include "executor/cuda/step_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "executor/cuda/bf16.h"

namespace coppice::executor::cuda {

namespace {

using attention::cuda::Item;
using attention::cuda::ItemRow;
using attention::cuda::MergeRow;
using attention::cuda::TreeCounts;

}  // namespace

StepMemory::StepMemory(const Gpu& gpu, const DecoderShape& shape, const StepLimits& limits,
                       std::span<const AttentionGroup> groups, bool bytes, std::size_t page_bytes)
    : shape_(shape),
      max_rows_(limits.max_rows),
      most_logit_rows_(std::min(limits.max_rows, kMostLogitRows)),
      most_samples_(std::min(limits.max_rows, limits.max_sequences)) {
  const auto rows = static_cast<std::size_t>(limits.max_rows);
  const auto count = [](int n) { return static_cast<std::size_t>(n); };
  rows_ = place(rows * 4);
  positions_ = place(rows * count(shape.position_size) * 4);
  outputs_ = place(kWanted * rows * 4);
  places_.resize(groups.size());
  for (GroupPlaces& p : places_) {
    p.slots = place(rows * 4);
    p.counts = place(sizeof(TreeCounts));
  }
  head_end_ = end_;
  for (GroupPlaces& p : places_) {
    p.items =
        place((count(limits.tree.items) + count(gpu.n_multiprocessors()) + 1) * sizeof(Item));  // a launch reads ahead
    p.rows = place(count(limits.tree.item_rows) * sizeof(ItemRow));
    p.merge_rows = place(count(limits.tree.merge_rows) * sizeof(MergeRow));
  }
  arena_ = DeviceMemory(end_, "a step's plan");
  staged_ = PinnedMemory(kStaged * end_);

  const auto scratch = [&](int n_numbers, std::size_t bytes_each) {
    return DeviceMemory(rows * count(n_numbers) * bytes_each, "a step");
  };
  residual_ = scratch(shape.n_embd, 4);
  product_ = scratch(widest_product(shape), 4);
  normed_ = scratch(shape.n_embd, 2);
  if (shape.n_ff > 0) gated_ = scratch(shape.n_ff, 2);
  experts_ = ExpertsMemory(shape.experts, shape.n_embd, limits.max_rows);
  q_ = scratch(shape.n_q, 2);
  attended_ = scratch(shape.n_q, 2);
  sums_ = DeviceMemory(matmul::cuda::product_scratch_sums(gpu) * sizeof(float), "a step");
  flags_ = DeviceMemory(matmul::cuda::kProductFlags * sizeof(std::uint32_t), "a step");
  const HeadCounts most = most_heads(groups);
  const auto states = [&](int n_numbers) {
    return DeviceMemory(count(limits.tree.slots) * count(n_numbers) * sizeof(float), "partial states of attention");
  };
  tree_sums_ = states(most.values);
  tree_states_ = states(2 * most.heads);
  tree_control_ = DeviceMemory(attention::cuda::kControlWords * sizeof(std::uint32_t), "a step");
  logits_ = DeviceMemory(count(most_logit_rows_) * count(shape.n_vocab) * sizeof(float), "logits");
  sampled_logits_ = DeviceMemory(count(most_samples_) * count(shape.n_vocab) * sizeof(float), "logits");

  for (std::size_t g = 0; g < groups.size(); ++g) {
    const attention::HeadShape& heads = groups[g].heads;
    const GroupPlaces& p = places_[g];
    groups_.push_back(
        {arena_.as<std::int32_t>(p.slots.at),
         {.bytes = bytes,
          .head_dim = heads.head_dim,
          .n_head = heads.n_head,
          .n_kv_head = heads.n_kv_head,
          .scale = heads.scale,
          .softcap = heads.softcap,
          .q = q_.as<void>(),
          .out = attended_.as<void>(),
          .block_bytes = static_cast<std::int64_t>(page_bytes),
          .counts = arena_.as<TreeCounts>(p.counts.at),
          .items = arena_.as<Item>(p.items.at),
          .rows = arena_.as<ItemRow>(p.rows.at),
          .merge_rows = arena_.as<MergeRow>(p.merge_rows.at),
          .scratch = {tree_sums_.as<float>(), tree_states_.as<float>(), tree_control_.as<std::uint32_t>()}}});
  }
}

StepMemory::Region StepMemory::place(std::size_t bytes) {
  const Region p{end_, bytes};
  end_ += aligned(bytes);
  return p;
}

void StepMemory::stage(const Region& place, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(staged(place.at), from, bytes);
}

void StepMemory::copy(std::size_t at, std::size_t bytes, CUstream_st* stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(arena_.as<std::byte>(at), staged(at), bytes, cudaMemcpyHostToDevice, stream), "copying a step");
}

void StepMemory::upload(const Batch& batch, const StepPlan& plan, std::span<const std::int32_t> wanted, int staging,
                        CUstream_st* stream) {
  staging_ = static_cast<std::size_t>(staging);
  upload_rows(batch, stream);
  stage(positions_, plan.positions().data(), plan.positions().size() * 4);
  stage(outputs_, wanted.data(), wanted.size_bytes());
  for (std::size_t g = 0; g < places_.size(); ++g) {
    const StepPlan::Group& group = plan.group(g);
    const attention::cuda::TreePlan& tree = *group.tree;
    const TreeCounts counts = {tree.n_items, static_cast<std::int32_t>(tree.merge_rows.size())};
    stage(places_[g].slots, group.slots.data(), group.slots.size_bytes());
    stage(places_[g].counts, &counts, sizeof counts);
    const auto large = [&](const Region& place, const auto& values) {
      const std::size_t bytes = values.size() * sizeof(values[0]);
      stage(place, values.data(), bytes);
      copy(place.at, bytes, stream);
    };
    large(places_[g].items, tree.items);
    large(places_[g].rows, tree.rows);
    large(places_[g].merge_rows, tree.merge_rows);
  }
  copy(0, head_end_, stream);
}

/// Embeddings go up as bf16, one behind the other.
void StepMemory::upload_rows(const Batch& batch, CUstream_st* stream) {
  const auto size = static_cast<std::size_t>((1 + shape_.n_planes) * shape_.n_embd);
  const auto of_all = static_cast<std::size_t>(max_rows_) * size * sizeof(std::uint16_t);
  auto* words = reinterpret_cast<std::int32_t*>(staged(rows_.at));
  std::int32_t n_given = 0;
  const std::size_t first = staging_ * static_cast<std::size_t>(max_rows_) * size;
  for (const RowSource row : batch.rows) {
    if (row.kind != RowSource::Kind::kEmbedding) {
      *words++ = row.kind == RowSource::Kind::kToken ? row.number : -1 - row.number;
      continue;
    }
    if (staged_given_.size() == 0) {
      given_ = DeviceMemory(of_all, "rows of images");
      staged_given_ = PinnedMemory(kStaged * of_all);
    }
    std::ranges::transform(batch.embeddings[static_cast<std::size_t>(row.number)],
                           staged_given_.as<std::uint16_t>() + first + static_cast<std::size_t>(n_given) * size,
                           to_bf16);
    *words++ = kGivenRow + n_given++;
  }
  has_given_ = n_given > 0;
  if (!has_given_) return;
  check(
      cudaMemcpyAsync(given_.as<void>(), staged_given_.as<std::uint16_t>() + first,
                      static_cast<std::size_t>(n_given) * size * sizeof(std::uint16_t), cudaMemcpyHostToDevice, stream),
      "copying rows of images");
}

DecoderStep StepMemory::step(int n_rows) const {
  return {.n_rows = n_rows,
          .rows = arena_.as<std::int32_t>(rows_.at),
          .given = has_given_ ? given_.as<void>() : nullptr,
          .positions = arena_.as<std::int32_t>(positions_.at),
          .groups = groups_,
          .scratch = {.residual = residual_.as<float>(),
                      .product = product_.as<float>(),
                      .normed = normed_.as<void>(),
                      .gated = gated_.as<void>(),
                      .q = q_.as<void>(),
                      .experts = experts_.scratch(),
                      .products = {sums_.as<float>(), flags_.as<std::uint32_t>()}}};
}

OutputRows StepMemory::outputs(int first, int n, float* logits) const {
  return {n, arena_.as<std::int32_t>(outputs_.at) + first, logits};
}

}  // namespace coppice::executor::cuda
