// tree: coppice's own kernel as two custom nodes of the graph, partials and merge; the barrier between nodes separates
// them. Which rows read which blocks is planned in each step, outside the graph, so one graph serves any tree.
#include <algorithm>
#include <atomic>

#include "attention/cpu/tree_attention.h"
#include "executor/ggml/graph/attention.h"

namespace coppice::executor {

namespace {

using attention::PoolView;
using attention::TreeCall;

/// What a layer group's nodes need. Filled anew each step; outlives the graphs, which hold its address.
struct TreeGroup {
  attention::SharePlanner planner;
  attention::HeadShape heads;
  std::shared_ptr<attention::TreeAttention> kernel;  ///< one for all groups with the same heads
  const KvStore* store;
  std::size_t bytes_per_token;
  attention::TreeStep step = {};
  std::vector<attention::SequenceRows> sequences = {};
  std::atomic<std::int32_t> next_job = 0;

  TreeGroup(const AttentionGroup& g, std::shared_ptr<attention::TreeAttention> k, const KvStore* s)
      : planner(g.kv), heads(g.heads), kernel(std::move(k)), store(s), bytes_per_token(g.bytes_per_token()) {}
};

PoolView pool_view(const KvStore& store, const ggml_tensor* k, const ggml_tensor* v) {
  const PageLayout& layout = store.layout();
  return {.format = layout.format,
          .block_size = layout.block_size,
          .row_bytes = ggml_row_size(k->type, k->ne[0]),
          .block_stride = layout.page_bytes,
          .keys = static_cast<const std::byte*>(k->data),
          .values = static_cast<const std::byte*>(v->data)};
}

/// Slots that some row of the step sees, each once.
std::uint64_t visible_slots(const attention::SharePlan& plan) {
  std::uint64_t slots = 0;
  for (const attention::Run& run : plan.runs) {
    const auto rows = plan.rows_of(run);
    const auto lo = std::ranges::min(rows, {}, &attention::RowInterval::lo).lo;
    const auto hi = std::ranges::max(rows, {}, &attention::RowInterval::hi).hi;
    slots += static_cast<std::uint64_t>(hi - lo);
  }
  return slots;
}

/// Sources: q, k, v. The result carries no data: partial states lie in the kernel's own memory.
void run_partials(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  auto& group = *static_cast<TreeGroup*>(userdata);
  const TreeCall call{pool_view(*group.store, dst->src[1], dst->src[2]), static_cast<const float*>(dst->src[0]->data)};
  group.kernel->partials(group.step, call, group.next_job, worker, n_workers);
}

/// Sources: the partials' node, then sinks if there are any.
void run_merge(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  auto& group = *static_cast<TreeGroup*>(userdata);
  if (worker == 0) group.next_job = 0;  // for the next layer: every worker is done with this one's jobs
  group.kernel->merge(group.step, group.store->layout().format, static_cast<float*>(dst->data),
                      static_cast<int>(dst->ne[1]), worker, n_workers,
                      dst->src[1] ? static_cast<const float*>(dst->src[1]->data) : nullptr);
}

class TreeBackend final : public Attention {
 public:
  TreeBackend(const AttentionConfig& config, int n_threads) {
    for (const AttentionGroup& g : config.groups) {
      const auto alike = std::ranges::find_if(groups_, [&g](const auto& other) { return other->heads == g.heads; });
      auto kernel = alike != groups_.end() ? (*alike)->kernel
                                           : std::make_shared<attention::TreeAttention>(
                                                 g.heads, config.store->layout().block_size, n_threads);
      if (alike == groups_.end()) kernels_.push_back(kernel.get());
      groups_.push_back(std::make_unique<TreeGroup>(g, std::move(kernel), config.store));
    }
  }

  std::string_view name() const override { return "tree"; }
  bool reuses_graphs() const override { return true; }
  bool own_nodes() const override { return true; }
  std::size_t nodes_per_layer(const Batch&) const override { return 2; }
  void begin(GraphBuilder&, const Batch&) override {}

  ggml_tensor* attend(GraphBuilder& b, const EnteredRows& rows, std::size_t group, ggml_tensor* sinks) override {
    TreeGroup* g = groups_[group].get();
    ggml_tensor* read[] = {rows.q, rows.k, rows.v};
    ggml_tensor* partials =
        ggml_custom_4d(b.context, GGML_TYPE_F32, 1, 1, 1, 1, read, 3, run_partials, GGML_N_TASKS_MAX, g);
    ggml_tensor* merged[] = {partials, sinks};
    return ggml_custom_4d(b.context, GGML_TYPE_F32, rows.q->ne[0] * rows.q->ne[1], rows.q->ne[2], 1, 1, merged,
                          sinks ? 2 : 1, run_merge, rows.q->ne[2] == 1 ? 1 : parts_for(ggml_nelements(rows.q)), g);
  }

  void fill(const Batch& batch) override {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      TreeGroup& g = *groups_[i];
      g.sequences.clear();
      int row = 0;
      for (const BatchSequence& s : batch.sequences) {
        g.sequences.push_back({row, s.n_rows, s.first_position, s.tables[i], s.both_ways});
        row += s.n_rows;
      }
      g.step.plan = &g.planner.plan(g.sequences);
      attention::make_schedule(*g.step.plan, g.kernel->cost_model(), g.step.schedule);
      g.kernel->prepare(g.step.schedule);
      g.next_job = 0;
      bytes_unique_ += visible_slots(*g.step.plan) * g.bytes_per_token;
    }
  }

  KvTraffic kv_traffic() const override {
    std::uint64_t bytes_read = 0;
    for (const attention::TreeAttention* k : kernels_) bytes_read += k->bytes_read();
    return {bytes_read, bytes_unique_};
  }

 private:
  std::uint64_t bytes_unique_ = 0;
  std::vector<std::unique_ptr<TreeGroup>> groups_;
  std::vector<const attention::TreeAttention*> kernels_;  ///< of the groups, each once
};

}  // namespace

std::string tree_attention_misfit(const std::vector<AttentionGroup>& groups, int block_size) {
  std::string misfit;
  for (const AttentionGroup& g : groups) {
    if (misfit.empty()) misfit = attention::TreeAttention::misfit(g.heads, block_size);
  }
  return misfit;
}

std::unique_ptr<Attention> make_tree_attention(const AttentionConfig& config, int n_threads) {
  return std::make_unique<TreeBackend>(config, n_threads);
}

}  // namespace coppice::executor
