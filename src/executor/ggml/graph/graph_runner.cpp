#include "executor/ggml/graph/graph_runner.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "executor/ggml/graph/attention.h"
#include "executor/ggml/store/ggml_abort.h"
#include "model/cpu_device.h"
#include "port/pause.h"
#include "port/threads_beside.h"

namespace coppice::executor {

namespace {

/// These are no part of ggml's common interface, as only its CPU has threads. Their declarations are in <ggml-cpu.h>.
using NewThreads = decltype(&ggml_threadpool_new);
using FreeThreads = decltype(&ggml_threadpool_free);
using UseThreads = decltype(&ggml_backend_cpu_set_threadpool);
using SetThreads = ggml_backend_set_n_threads_t;

/// How long a thread spins before it sleeps: it takes some 5 us to sleep and be woken again, where a core is free.
constexpr std::chrono::microseconds kSpin{50};

/// Nodes that threads share: the others are views, or soon done.
int count_shared(ggml_cgraph* graph) {
  int n = 0;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_op op = ggml_graph_node(graph, i)->op;
    n += op == GGML_OP_CUSTOM || op == GGML_OP_MUL_MAT || op == GGML_OP_MUL_MAT_ID ? 1 : 0;
  }
  return n;
}

double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

double now() {
  return seconds_of(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

GraphRunner::GraphRunner(int n_threads, bool governed)
    : n_threads_(n_threads),
      threadpool_(nullptr, model::cpu_function<FreeThreads>("ggml_threadpool_free")),
      cpu_(ggml_backend_dev_init(model::cpu_device(), nullptr)),
      set_threads_(model::cpu_function<SetThreads>("ggml_backend_set_n_threads")),
      allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {
  ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
  // Above 100: pauses before a thread sleeps (cmake/llama/phases.h).
  params.poll = static_cast<std::uint32_t>(std::max(101, port::pauses_in(kSpin)));
  std::vector<int> before = port::thread_ids();
  threadpool_.reset(model::cpu_function<NewThreads>("ggml_threadpool_new")(&params));
  if (!threadpool_ || !cpu_) throw model::LoadError(fmt::format("cannot start {} worker threads", n_threads));
  model::cpu_function<UseThreads>("ggml_backend_cpu_set_threadpool")(cpu_.get(), threadpool_.get());
  if (!governed) return;
  workers_ = port::thread_ids();
  std::erase_if(workers_, [&before](int id) { return std::ranges::find(before, id) != before.end(); });
  governor_.emplace(n_threads, [this] { return delays(); });
}

int GraphRunner::count_threads() const {
  const int left = port::ThreadsBeside::left(n_threads_);
  return governor_ ? std::min({left, governor_->n_threads(), graphs_.front().cost.threads(n_threads_)}) : left;
}

double GraphRunner::delays() {
  if (const int caller = port::this_thread_id(); caller != caller_) {
    caller_ = caller;
    std::vector<int> all = workers_;
    all.push_back(caller);
    delays_.emplace(all);
  }
  return seconds_of(delays_->sum());
}

void GraphRunner::learn(double seconds, int n_threads) {
  MadeGraph& made = graphs_.front();
  made.cost.ran(n_threads, seconds);
  if (governor_->ran(now(), seconds, made.graph->shape().n_rows, n_threads)) {
    spdlog::debug("{} threads from now on, of {}", governor_->n_threads(), n_threads_);
  }
}

bool GraphRunner::allocate(ggml_cgraph* graph) {
  try {
    if (!allocator_) allocator_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
    return ggml_gallocr_reserve(allocator_.get(), graph) && ggml_gallocr_alloc_graph(allocator_.get(), graph);
  } catch (const std::exception&) {
    // It gave up in the middle of its work. What it holds by now, nobody can tell: to free that might free it twice.
    [[maybe_unused]] const auto* const lost = allocator_.release();
    graphs_.clear();
    throw;
  }
}

StepGraph& GraphRunner::prepare(const DecoderParts& parts, const Batch& batch) {
  if (!parts.attention->reuses_graphs()) graphs_.clear();
  const StepShape shape = shape_of(batch, *parts.attention);
  const auto found = std::ranges::find_if(graphs_, [&](const auto& g) { return g.graph->shape() == shape; });
  if (found != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, found);
    return *graphs_.front().graph;
  }
  const auto start = std::chrono::steady_clock::now();
  const GgmlThrows throws;
  auto graph = std::make_unique<StepGraph>(parts, batch, shape);
  const std::size_t before = allocator_ ? ggml_gallocr_get_buffer_size(allocator_.get(), 0) : 0;
  if (!allocate(graph->graph())) {
    graphs_.clear();
    throw StepError("not enough memory for a step of this size");
  }
  if (ggml_gallocr_get_buffer_size(allocator_.get(), 0) != before) graphs_.clear();
  const StepCost cost(count_shared(graph->graph()));
  graphs_.push_front({std::move(graph), cost});
  if (graphs_.size() > kMaxGraphs) graphs_.pop_back();
  spdlog::debug("a graph of {} rows and {} nodes, made in {:.2f} ms", shape.n_rows,
                ggml_graph_n_nodes(graphs_.front().graph->graph()),
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  return *graphs_.front().graph;
}

void GraphRunner::run(StepGraph& graph) {
  const port::StepUnderWay step;
  const int n_threads = used_ = count_threads();
  set_threads_(cpu_.get(), n_threads);
  const double start = now();
  if (const ggml_status status = ggml_backend_graph_compute(cpu_.get(), graph.graph()); status != GGML_STATUS_SUCCESS) {
    throw StepError(fmt::format("the step failed in ggml: {}", ggml_status_to_string(status)));
  }
  if (governor_) learn(now() - start, n_threads);
}

}  // namespace coppice::executor
