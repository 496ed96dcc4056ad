#include "executor/ggml/graph/graph_runner.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "executor/ggml/graph/attention.h"
#include "executor/ggml/store/cpu_device.h"
#include "executor/ggml/store/ggml_abort.h"
#include "port/pause.h"

namespace coppice::executor {

namespace {

/// These are no part of ggml's common interface, as only its CPU has threads. Their declarations are in <ggml-cpu.h>.
using NewThreads = decltype(&ggml_threadpool_new);
using FreeThreads = decltype(&ggml_threadpool_free);
using UseThreads = decltype(&ggml_backend_cpu_set_threadpool);
using SetThreads = ggml_backend_set_n_threads_t;

/// How long a thread spins before it sleeps: it takes some 5 us to sleep and be woken again, where a core is free.
constexpr std::chrono::microseconds kSpin{50};

}  // namespace

GraphRunner::GraphRunner(int n_threads)
    : threadpool_(nullptr, cpu_function<FreeThreads>("ggml_threadpool_free")),
      cpu_(ggml_backend_dev_init(cpu_device(), nullptr)),
      allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  // Above 100: pauses before a thread sleeps (cmake/llama/phases.h).
  params.poll = static_cast<std::uint32_t>(std::max(101, port::pauses_in(kSpin)));
  threadpool_.reset(cpu_function<NewThreads>("ggml_threadpool_new")(&params));
  if (!threadpool_ || !cpu_) throw model::LoadError(fmt::format("cannot start {} worker threads", n_threads));
  cpu_function<SetThreads>("ggml_backend_set_n_threads")(cpu_.get(), n_threads);
  cpu_function<UseThreads>("ggml_backend_cpu_set_threadpool")(cpu_.get(), threadpool_.get());
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
  const GgmlThrows throws;
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
  if (const ggml_status status = ggml_backend_graph_compute(cpu_.get(), graph.graph()); status != GGML_STATUS_SUCCESS) {
    throw StepError(fmt::format("the step failed in ggml: {}", ggml_status_to_string(status)));
  }
}

}  // namespace coppice::executor
