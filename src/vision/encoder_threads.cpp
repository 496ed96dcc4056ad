#include "vision/encoder_threads.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>

#include "check/assert.h"
#include "port/pause.h"
#include "port/threads_beside.h"

/// libmtmd's, which cmake/llama/mtmd.cmake brings. Null: it computes by itself.
extern ggml_status (*coppice_compute_encoder)(ggml_backend_sched_t, ggml_backend_t, ggml_cgraph*);

namespace coppice::vision {

namespace {

using Clock = std::chrono::steady_clock;

/// How long a thread spins before it sleeps.
constexpr std::chrono::microseconds kSpin{50};
/// A rest is looked at anew after so long.
constexpr std::chrono::milliseconds kLook{5};

/// What may take milliseconds: a piece ends there.
bool is_large(const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_MUL_MAT:
    case GGML_OP_FLASH_ATTN_EXT:
    case GGML_OP_CONV_2D:
    case GGML_OP_IM2COL:
      return true;
    default:
      return false;
  }
}

/// These are no part of ggml's common interface, as only its CPU has threads; the CPU's part may be a module.
template <class F>
F cpu_function(ggml_backend_t cpu, const char* name) {
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
  return reinterpret_cast<F>(ggml_backend_reg_get_proc_address(registry, name));
}

}  // namespace

/// One that is computed: its pieces.
class EncoderThreads::Graph {
 public:
  Graph(EncoderThreads& threads, const std::function<bool()>& stop) : threads_(threads), stop_(stop) {}

  ggml_status compute(ggml_backend_sched_t sched, ggml_backend_t cpu, ggml_cgraph* graph) {
    cpu_ = cpu;
    use_pool();
    ggml_backend_sched_set_eval_callback(sched, on_node, this);
    stopped_ = !next();
    const ggml_status status = stopped_ ? GGML_STATUS_ABORTED : ggml_backend_sched_graph_compute(sched, graph);
    beside_.reset();
    ggml_backend_sched_set_eval_callback(sched, nullptr, nullptr);
    cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>(cpu, "ggml_backend_cpu_set_threadpool")(cpu, nullptr);
    return stopped_ ? GGML_STATUS_ABORTED : status;
  }

 private:
  void use_pool() {
    if (threads_.pool_ == nullptr) {
      ggml_threadpool_params params = ggml_threadpool_params_default(threads_.most_);
      // Above 100: pauses before a thread sleeps (cmake/llama/phases.h).
      params.poll = static_cast<std::uint32_t>(std::max(101, port::pauses_in(kSpin)));
      threads_.pool_ = cpu_function<decltype(&ggml_threadpool_new)>(cpu_, "ggml_threadpool_new")(&params);
      threads_.free_pool_ = cpu_function<decltype(&ggml_threadpool_free)>(cpu_, "ggml_threadpool_free");
    }
    cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>(cpu_, "ggml_backend_cpu_set_threadpool")(cpu_,
                                                                                                      threads_.pool_);
  }

  /// ask: whether a piece ends with this node. Else it has ended; false: the graph ends.
  static bool on_node(ggml_tensor* node, bool ask, void* data) {
    if (ask) return is_large(node);
    auto& self = *static_cast<Graph*>(data);
    self.stopped_ = !self.next();
    return !self.stopped_;
  }

  /// Rests, and begins the next piece. False: it is to end.
  bool next() {
    const Clock::duration took = beside_ ? Clock::now() - begin_ : Clock::duration{};
    beside_.reset();
    if (n_ < threads_.most_ || threads_.most_ == 1) rest(took);
    if (stop_()) return false;
    n_ = port::StepUnderWay::lately() ? port::ThreadsBeside::most(threads_.most_) : threads_.most_;
    cpu_function<ggml_backend_set_n_threads_t>(cpu_, "ggml_backend_set_n_threads")(cpu_, n_);
    beside_.emplace(n_);
    begin_ = Clock::now();
    return true;
  }

  /// For as long as steps run, and the few threads have computed for more than a quarter of all threads' time.
  void rest(Clock::duration took) const {
    const int most = threads_.most_;
    const Clock::time_point end = Clock::now() + took * (4 * port::ThreadsBeside::most(most) - most) / most;
    while (port::StepUnderWay::lately() && !stop_()) {
      const auto now = Clock::now();
      if (now >= end) return;
      std::this_thread::sleep_for(std::min<Clock::duration>(kLook, end - now));
    }
  }

  EncoderThreads& threads_;
  const std::function<bool()>& stop_;
  ggml_backend_t cpu_ = nullptr;
  std::optional<port::ThreadsBeside> beside_;  ///< while a piece is computed
  Clock::time_point begin_;                    ///< of the piece
  int n_ = 0;                                  ///< threads of the piece
  bool stopped_ = false;
};

struct EncoderThreads::Hook {
  static inline thread_local Graph* running = nullptr;  ///< what computes this thread's graphs

  static ggml_status compute(ggml_backend_sched_t sched, ggml_backend_t cpu, ggml_cgraph* graph) {
    return running == nullptr ? ggml_backend_sched_graph_compute(sched, graph) : running->compute(sched, cpu, graph);
  }
};

EncoderThreads::~EncoderThreads() {
  if (pool_ != nullptr) free_pool_(pool_);
}

void EncoderThreads::run(const std::function<void()>& encode, const std::function<bool()>& stop) {
  static const bool hooked = (coppice_compute_encoder = Hook::compute) != nullptr;
  COPPICE_ASSERT(hooked && Hook::running == nullptr);
  Graph graph(*this, stop);
  struct Running {
    ~Running() { Hook::running = nullptr; }
  } const ends;
  Hook::running = &graph;
  encode();
}

}  // namespace coppice::vision
