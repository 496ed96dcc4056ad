#include "executor/ggml/graph/sequence_attention.h"

#include <algorithm>

#include "executor/ggml/graph/read_rows.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kNodesPerSequence = 24;

constexpr ggml_fp16_t kSeen = 0x0000;    // 0
constexpr ggml_fp16_t kHidden = 0xFC00;  // -inf

/// First position that some row of the sequence sees.
std::int64_t first_key(const kv::GroupSpec& group, const BatchSequence& s) {
  return group.first_visible(s.first_position);
}

}  // namespace

std::size_t SequenceAttention::nodes_per_layer(const Batch& batch) const {
  return kNodesPerSequence * batch.sequences.size();
}

void SequenceAttention::begin(GraphBuilder& b, const Batch& batch) {
  n_rows_.clear();
  for (const BatchSequence& s : batch.sequences) n_rows_.push_back(s.n_rows);
  inputs_.assign(config_.groups.size(), {});
  for (std::size_t g = 0; g < inputs_.size(); ++g) {
    for (const BatchSequence& s : batch.sequences) {
      const std::int64_t n_keys = std::int64_t{s.first_position} + s.n_rows - first_key(config_.groups[g].kv, s);
      const Inputs in = {ggml_new_tensor_1d(b.context, GGML_TYPE_I32, n_keys),
                         ggml_new_tensor_2d(b.context, GGML_TYPE_F16, n_keys, s.n_rows)};
      ggml_set_input(in.ids);
      ggml_set_input(in.mask);
      inputs_[g].push_back(in);
    }
  }
}

ggml_tensor* SequenceAttention::attend(GraphBuilder& b, const EnteredRows& rows, std::size_t group,
                                       ggml_tensor* sinks) {
  ggml_tensor* q = rows.q;
  ggml_tensor* all = ggml_new_tensor_2d(b.context, GGML_TYPE_F32, q->ne[0] * q->ne[1], q->ne[2]);
  std::size_t row = 0;
  for (std::size_t i = 0; i < n_rows_.size(); ++i) {
    const Inputs& in = inputs_[group][i];
    const auto read = [&](ggml_tensor* pool) { return read_rows(b, pool, in.ids, static_cast<int>(q->ne[0])); };
    ggml_tensor* own = ggml_view_3d(b.context, q, q->ne[0], q->ne[1], n_rows_[i], q->nb[1], q->nb[2], row * q->nb[2]);
    ggml_tensor* out =
        attend_sequence(b.context, own, read(rows.k), read(rows.v), in.mask, sinks, config_.groups[group].heads);
    all = ggml_set_2d_inplace(b.context, all, out, all->nb[1], row * all->nb[1]);
    row += static_cast<std::size_t>(n_rows_[i]);
  }
  return all;
}

void SequenceAttention::fill(const Batch& batch) {
  for (std::size_t g = 0; g < inputs_.size(); ++g) {
    const AttentionGroup& reads = config_.groups[g];
    const kv::GroupSpec& group = reads.kv;
    const std::size_t row = static_cast<std::size_t>(reads.heads.n_kv_head * reads.heads.head_dim) * sizeof(float);
    const std::size_t bytes_per_key =
        reads.bytes_per_token() + static_cast<std::size_t>(copies()) * row * reads.n_readers;
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
      const BatchSequence& s = batch.sequences[i];
      const Inputs& in = inputs_[g][i];
      if (in.ids->data == nullptr)
        continue;  // no logits are wanted, so the last layer, the group's only one, just writes
      const std::int64_t first = first_key(group, s), n_keys = in.ids->ne[0];
      auto* ids = static_cast<std::int32_t*>(in.ids->data);
      for (std::int64_t k = 0; k < n_keys; ++k) {
        ids[k] = static_cast<std::int32_t>(config_.store->row(g, s.tables[g], first + k));
      }
      auto* mask = static_cast<ggml_fp16_t*>(in.mask->data);
      for (std::int64_t position = s.first_position; position < s.first_position + s.n_rows;
           ++position, mask += n_keys) {
        std::fill_n(mask, n_keys, kHidden);
        std::fill(mask + group.first_visible(position) - first, mask + group.end_visible(position, s.both_ways) - first,
                  kSeen);
      }
      bytes_read_ += static_cast<std::size_t>(n_keys) * bytes_per_key;
    }
  }
}

}  // namespace coppice::executor
