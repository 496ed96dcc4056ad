// SequenceAttention: attention in a loop over a step's sequences. Of each, the keys and values that its rows see are
// copied out of the pool in f32, in the order of their positions, then its rows attend to them. So any table can be
// read, and block ids decide nothing. What a subclass adds is the operators that attend.
//
// A graph is made for each step: it holds as many keys as the step's sequences have.
#pragma once

#include <vector>

#include "executor/ggml/graph/attention.h"

namespace coppice::executor {

class SequenceAttention : public Attention {
 public:
  explicit SequenceAttention(const AttentionConfig& config) : config_(config) {}

  bool reuses_graphs() const override { return false; }
  std::size_t nodes_per_layer(const Batch& batch) const override;
  void begin(GraphBuilder& b, const Batch& batch) override;
  ggml_tensor* attend(GraphBuilder& b, const EnteredRows& rows, std::size_t group, ggml_tensor* sinks) override;
  void fill(const Batch& batch) override;
  KvTraffic kv_traffic() const override { return {bytes_read_, 0}; }

 protected:
  /// q: [head_dim, n_head, n_rows]; k, v: [head_dim, n_kv_head, n_keys], all f32. mask: f16 [n_keys, n_rows], 0 where
  /// the row sees the key, otherwise -inf. Returns [n_head * head_dim, n_rows].
  virtual ggml_tensor* attend_sequence(ggml_context* context, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v,
                                       ggml_tensor* mask, ggml_tensor* sinks,
                                       const attention::HeadShape& heads) const = 0;
  /// How often a layer's keys (or values) are copied in f32, both counted.
  virtual int copies() const = 0;

  const AttentionConfig& config() const { return config_; }

 private:
  struct Inputs {
    ggml_tensor* ids;   ///< i32 [n_keys]: the store's rows
    ggml_tensor* mask;  ///< as attend_sequence takes it
  };

  AttentionConfig config_;
  std::vector<int> n_rows_;                  ///< [sequences] of the graph that was begun last
  std::vector<std::vector<Inputs>> inputs_;  ///< [n_groups][sequences] of that graph
  std::uint64_t bytes_read_ = 0;
};

}  // namespace coppice::executor
