#include "tree_backend.h"

#include "attention/cpu/tree_attention.h"

namespace coppice::bench {
namespace {

class TreeBackend final : public Backend {
 public:
  std::string_view name() const override { return "tree"; }
  bool supports(const BenchCase& c) const override { return c.order == KvOrder::kSlotHeadDim; }
  int phases() const override { return 2; }

  void prepare(Step& step, int n_threads) override {
    const test::AttentionCase& what = step.c.what;
    step_ = &step;
    n_threads_ = n_threads;
    planner_ = std::make_unique<attention::SharePlanner>(what.group);
    attention_ = std::make_unique<attention::TreeAttention>(what.heads, what.block_size, n_threads);
    tree_step_.plan = &planner_->plan(what.rows());
    attention::make_schedule(*tree_step_.plan, n_threads, attention_->cost_model(), tree_step_.schedule);
    attention_->prepare(tree_step_.schedule);
    next_job_ = 0;
  }

  void run(std::size_t layer, int phase, int worker) override {
    if (phase == 0) {
      const attention::TreeCall call{.pool = step_->layers[layer], .q = step_->q.data()};
      attention_->partials(tree_step_, call, next_job_, worker);
      return;
    }
    if (worker == 0) next_job_ = 0;
    attention_->merge(tree_step_, step_->c.format, step_->out.data(), step_->c.what.n_rows(), worker, n_threads_);
  }

  Traffic traffic() const override { return {.read = attention_->bytes_read(), .written = 0}; }

 private:
  Step* step_ = nullptr;
  int n_threads_ = 0;
  std::unique_ptr<attention::SharePlanner> planner_;
  std::unique_ptr<attention::TreeAttention> attention_;
  attention::TreeStep tree_step_;
  std::atomic<std::int32_t> next_job_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_tree_backend() {
  return std::make_unique<TreeBackend>();
}

}  // namespace coppice::bench
