#include "executor/ggml/graph/graph_runner.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "executor/ggml/graph/attention.h"

namespace coppice::executor {

GraphRunner::GraphRunner(int n_threads)
    : n_threads_(n_threads), allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {
  ggml_cpu_init();
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  threadpool_.reset(ggml_threadpool_new(&params));
  if (!threadpool_) throw model::LoadError(fmt::format("cannot start {} worker threads", n_threads));
}

StepGraph& GraphRunner::prepare(const DecoderParts& parts, const Batch& batch) {
  if (!parts.attention->reuses_graphs()) graphs_.clear();
  const StepShape shape = shape_of(batch, *parts.attention);
  const auto found = std::ranges::find_if(graphs_, [&](const auto& g) { return g->shape() == shape; });
  if (found != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, found);
    return *graphs_.front();
  }
  const auto start = std::chrono::steady_clock::now();
  auto graph = std::make_unique<StepGraph>(parts, batch, shape);
  const std::size_t before = ggml_gallocr_get_buffer_size(allocator_.get(), 0);
  if (!ggml_gallocr_reserve(allocator_.get(), graph->graph()) ||
      !ggml_gallocr_alloc_graph(allocator_.get(), graph->graph())) {
    graphs_.clear();
    throw StepError("not enough memory for a step of this size");
  }
  if (ggml_gallocr_get_buffer_size(allocator_.get(), 0) != before) graphs_.clear();
  graphs_.push_front(std::move(graph));
  if (graphs_.size() > kMaxGraphs) graphs_.pop_back();
  spdlog::debug("a graph of {} rows and {} nodes, made in {:.2f} ms", shape.n_rows,
                ggml_graph_n_nodes(graphs_.front()->graph()),
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  return *graphs_.front();
}

void GraphRunner::run(StepGraph& graph) {
  ggml_cplan plan = ggml_graph_plan(graph.graph(), n_threads_, threadpool_.get());
  if (work_.size() < plan.work_size) work_.resize(plan.work_size);
  plan.work_data = work_.data();
  if (const ggml_status status = ggml_graph_compute(graph.graph(), &plan); status != GGML_STATUS_SUCCESS) {
    throw StepError(fmt::format("the step failed in ggml: {}", ggml_status_to_string(status)));
  }
}

}  // namespace coppice::executor
