// Attention: a backend (--attention) that computes softmax(Q K^T) V from the pool's blocks. The decoder around it is
// the same for all. Not thread safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/base/attention_groups.h"
#include "executor/executor.h"
#include "executor/ggml/graph/enter_rows.h"
#include "executor/ggml/graph/graph_builder.h"

namespace coppice::executor {

class Attention {
 public:
  virtual ~Attention() = default;
  virtual std::string_view name() const = 0;

  /// Whether a graph serves every batch that has as many rows and outputs. If not, a graph is made for each step.
  virtual bool reuses_graphs() const = 0;
  /// Whether rope and the write into the pool may be a node of our own. If not, they are ggml's operators.
  virtual bool own_nodes() const = 0;
  /// At most as many nodes are made for a layer's attention.
  virtual std::size_t nodes_per_layer(const Batch& batch) const = 0;

  /// Begins a graph for this batch: declares what inputs the backend needs beside StepInputs.
  virtual void begin(GraphBuilder& b, const Batch& batch) = 0;
  /// One layer's attention: [n_head * head_dim, n_rows]. sinks: f32 [n_head], model::AttentionSpec::sinks; nullptr:
  /// none.
  virtual ggml_tensor* attend(GraphBuilder& b, const EnteredRows& rows, std::size_t group, ggml_tensor* sinks) = 0;
  /// Fills the inputs before a step's run.
  virtual void fill(const Batch& batch) = 0;

  virtual KvTraffic kv_traffic() const = 0;
};

struct AttentionConfig {
  const KvStore* store = nullptr;
  std::vector<AttentionGroup> groups;
};

/// The tensor library's fused attention, sequence by sequence. REQUIRES: the store's format is f16.
std::unique_ptr<Attention> make_gather_attention(const AttentionConfig& config);
/// The reference: plain products and softmax in f32, sequence by sequence.
std::unique_ptr<Attention> make_dense_attention(const AttentionConfig& config);
/// Our own kernel, which reads each shared block once. REQUIRES: tree_attention_misfit() is empty.
std::unique_ptr<Attention> make_tree_attention(const AttentionConfig& config, int n_threads);

/// Why the tree kernel can't serve these groups, as part of a sentence; empty: it can.
std::string tree_attention_misfit(const std::vector<AttentionGroup>& groups, int block_size);

}  // namespace coppice::executor
