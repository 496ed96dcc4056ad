// Attention: one way of reading the pool [K14]. Backends differ in how a unit's keys come together and in what computes
// softmax(Q K^T) V; the decoder around them is the same.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "executor/ggml/ggml_ptr.h"
#include "executor/ggml/kv_store.h"
#include "executor/ggml/step_plan.h"
#include "model/model.h"

namespace coppice::executor {

/// Reads a run of neighbouring blocks in place of gathering them; repointed each step.
struct KeyView {
  ggml_tensor* tensor = nullptr;
  ggml_tensor* pool = nullptr;
};

/// A unit's inputs in one group, shared by the group's layers.
struct UnitInputs {
  ggml_tensor* ids = nullptr;   ///< i32: block or slot numbers to gather; nullptr when read in place
  ggml_tensor* mask = nullptr;  ///< [keys, n_rows, 1, n_streams]: 0 or -inf; nullptr: the backend knows
  std::vector<KeyView> views;   ///< read in place: K and V of each layer
};

/// A unit as a graph sees it: its shape, and in which groups its blocks lie side by side in the pool.
struct UnitKey {
  UnitShape shape;
  bool in_place = false;
  auto operator<=>(const UnitKey&) const = default;
};

class Attention {
 public:
  virtual ~Attention() = default;
  virtual std::string_view name() const = 0;
  virtual PlanPolicy policy() const = 0;

  /// Whether all that becomes of q, k and v before and in attention is done by operations that every ggml device has, in
  /// place of our own on the CPU.
  virtual bool portable() const { return false; }

  /// Whether the unit's keys can be read where they lie. Decides the graph.
  virtual bool in_place(const Unit& unit, const UnitShape& shape) const = 0;

  /// Declares a unit's inputs for one group.
  virtual UnitInputs declare(ggml_context* context, const UnitKey& unit, std::size_t group) const = 0;

  /// Attention of one unit in one layer. q: [head_dim, n_head, n_streams * n_rows] f32, this unit's rows.
  /// k, v: the layer's pool after this step's writes, as the store has it. Returns [n_embd_q, n_streams * n_rows].
  virtual ggml_tensor* build(ggml_context* context, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, const UnitKey& unit,
                             std::size_t group, UnitInputs& inputs) const = 0;

  /// Fills a unit's inputs for one step.
  virtual void fill(const Batch& batch, const Unit& unit, const UnitKey& key, std::size_t group,
                    UnitInputs& inputs) = 0;

  virtual KvTraffic kv_traffic() const { return {}; }
};

struct AttentionConfig {
  const model::ModelSpec* spec = nullptr;
  const KvStore* store = nullptr;
  std::vector<kv::GroupSpec> groups;
};

/// REQUIRES: the store's format is f16.
std::unique_ptr<Attention> make_gather_attention(const AttentionConfig& config);
std::unique_ptr<Attention> make_dense_attention(const AttentionConfig& config);
std::unique_ptr<Attention> make_tree_attention(const AttentionConfig& config, int n_threads);

/// What of a model's shape the tree kernel can't serve, as part of a sentence; empty: nothing.
std::string tree_attention_misfit(const model::ModelSpec& spec, int block_size);

/// Calls visit(row, first key, last key + 1) for each run of keys that a row sees; rows count within the unit
/// (stream by stream), keys within the row's stream.
template <class Visit>
void for_each_visible_run(const Batch& batch, const Unit& unit, const kv::GroupSpec& spec, std::size_t group,
                          Visit&& visit) {
  for (std::size_t i = 0; i < unit.sequences.size(); ++i) {
    const UnitSequence& u = unit.sequences[i];
    const BatchSequence& s = batch.sequences[static_cast<std::size_t>(u.sequence)];
    const std::vector<int>& columns = unit.columns[group][i].columns;
    const std::int64_t block_size = s.tables[group].block_size;
    for (int r = 0; r < s.n_rows; ++r) {
      const std::int64_t last = std::int64_t{s.first_position} + r;
      for (std::int64_t p = first_visible(spec, last); p <= last;) {
        const std::int64_t end = std::min(last + 1, (p / block_size + 1) * block_size);
        if (const int c = columns[static_cast<std::size_t>(p / block_size)]; c >= 0) {
          const std::int64_t first = c * block_size + p % block_size;
          visit(u.first_row - unit.first_row + r, first, first + (end - p));
        }
        p = end;
      }
    }
  }
}

}  // namespace coppice::executor
