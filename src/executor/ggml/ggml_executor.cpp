#include "executor/ggml/ggml_executor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <ranges>

#include "executor/base/batch_check.h"
#include "executor/base/ropes.h"
#include "executor/ggml/graph/attention.h"
#include "executor/ggml/graph/graph_runner.h"
#include "executor/ggml/graph/state_step.h"
#include "executor/ggml/store/ggml_abort.h"
#include "model/cpu_device.h"
#include "port/processors.h"
#include "port/signals.h"
#include "simd/target.h"

namespace coppice::executor {

namespace {

using attention::KvFormat;
using Clock = std::chrono::steady_clock;

void route_ggml_log() {
  ggml_log_set(
      [](ggml_log_level level, const char* text, void*) {
        std::string_view line(text);
        while (!line.empty() && line.back() == '\n') line.remove_suffix(1);
        if (line.empty()) return;
        if (level == GGML_LOG_LEVEL_ERROR) spdlog::error("ggml: {}", line);
        if (level == GGML_LOG_LEVEL_WARN) spdlog::warn("ggml: {}", line);
      },
      nullptr);
}

KvFormat checked_format(const GgmlOptions& o) {
  const auto format = attention::find_format(o.kv_format);
  if (!format) {
    throw model::LoadError(
        fmt::format("KV format '{}' is not known; known: {}", o.kv_format,
                    fmt::join(attention::kKvFormats | std::views::transform(attention::format_name), ", ")));
  }
  if (o.attention == "gather" && *format != KvFormat::kF16) {
    throw model::LoadError(
        fmt::format("--attention gather reads f16 only; --kv-format {} needs tree or dense", o.kv_format));
  }
  return *format;
}

GgmlOptions checked(GgmlOptions o) {
  if (o.attention != "auto" && o.attention != "tree" && o.attention != "gather" && o.attention != "dense") {
    throw model::LoadError(fmt::format("attention '{}' is not known; known: auto, tree, gather, dense", o.attention));
  }
  if (o.block_size != 8 && o.block_size != 16 && o.block_size != 32 && o.block_size != 64) {
    throw model::LoadError(fmt::format("a block size of {} is not possible; 8, 16, 32 or 64 are", o.block_size));
  }
  if (o.max_rows < 1 || o.max_sequences < 1 || o.context < 0) {
    throw model::LoadError(fmt::format("limits of {} rows, {} sequences and {} tokens of context make no sense",
                                       o.max_rows, o.max_sequences, o.context));
  }
  return o;
}

std::string computing(int threads) {
  return threads == 1 ? "1 thread computes" : fmt::format("{} threads compute", threads);
}

/// How many threads compute at most. The log says why.
int choose_threads(int wanted) {
  const port::Processors found = port::find_processors();
  if (wanted <= 0) {
    const int n = std::min(found.threads(), GGML_MAX_N_THREADS);
    spdlog::info("up to {} ({}), fewer where a step is small or other programs run", computing(n), found.reason());
    return n;
  }
  const int n = std::min(wanted, GGML_MAX_N_THREADS);
  spdlog::info("{}, as --threads says ({})", computing(n), found.reason());
  if (n > found.usable) {
    spdlog::warn("more threads than processors: they wait for each other, so fewer are faster");
  } else if (n > found.quota.value_or(n)) {
    spdlog::warn("more threads than the quota has time for: they are stopped again and again, so fewer are faster");
  }
  return n;
}

class GgmlExecutor final : public BlockingExecutor {
 public:
  GgmlExecutor(model::Model model, GgmlOptions options, const Progress& progress)
      : options_(checked(std::move(options))),
        format_(checked_format(options_)),
        n_threads_(choose_threads(options_.n_threads)),
        model_(std::move(model)),
        layout_(make_page_layout(kv_layers(model_.spec), format_, options_.block_size, state_layers(model_.spec))),
        weights_(model_, progress),
        store_(layout_, options_.kv_bytes, n_threads_, progress),
        attention_(make_attention()),
        ropes_(make_ropes(model_)),
        states_(n_threads_),
        runner_(n_threads_, /*governed=*/options_.n_threads <= 0) {
    fill_info();
    parts_ = {.spec = &model_.spec,
              .weights = &weights_,
              .store = &store_,
              .attention = attention_.get(),
              .ropes = &ropes_,
              .places = layer_places(model_.spec, layout_),
              .states = layout_.state.n_pages > 0 ? &states_ : nullptr};
    limits_ = {.n_vocab = info_.n_vocab,
               .context = options_.context > 0 ? options_.context : std::numeric_limits<std::int32_t>::max(),
               .max_rows = options_.max_rows,
               .max_sequences = options_.max_sequences,
               .block_size = options_.block_size,
               .num_blocks = store_.num_blocks(),
               .n_groups = layout_.n_tables(),
               .state_pages = layout_.state.n_pages,
               .embedding_size = info_.embedding_size,
               .both_ways = true,
               .positions = info_.positions};
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) limits_.outside_bytes.push_back(store_.outside_bytes(g));
  }

  const ExecutorInfo& info() const override { return info_; }
  const Weights& weights() const { return weights_; }
  const PageLayout& layout() const { return layout_; }
  KvTraffic kv_traffic() const override { return attention_->kv_traffic(); }
  ThreadFigures thread_figures() const override { return runner_.thread_figures(); }

  double planning_seconds() const override { return planning_seconds_; }

  bool sleep() override {
    weights_.sleep();
    spdlog::info("asleep: no requests for a while, so the weights' memory is let go");
    return true;
  }
  bool wake(Clock::time_point until) override {
    if (!waking_since_) {
      if (model::was_changed(model_)) port::end_for_lost_pages();  // what is cached was computed with other weights
      waking_since_ = Clock::now();
      spdlog::info("awake: a request has come, the weights are read again");
    }
    if (!weights_.wake(until)) return false;
    const std::chrono::duration<double> took = Clock::now() - *std::exchange(waking_since_, std::nullopt);
    spdlog::info("the weights are back after {:.2f} s", took.count());
    return true;
  }

 private:
  Result run(const Batch& batch) override {
    const auto start = Clock::now();
    check_batch(batch, limits_);
    if (batch.rows.empty()) {
      store_.run(batch.block_ops, batch.outside);
      return {};
    }
    StepGraph& graph = runner_.prepare(parts_, batch);
    graph.fill(batch);
    planning_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    store_.run(batch.block_ops, batch.outside);
    runner_.run(graph);
    const auto rows = [](float* data, std::size_t n, int width) {
      return n > 0 ? std::span(data, n * static_cast<std::size_t>(width)) : std::span<float>();
    };
    return {.logits = {rows(graph.logits(), batch.logit_rows.size(), info_.n_vocab), info_.n_vocab},
            .hidden_states = {rows(graph.hidden_states(), batch.hidden_rows.size(), info_.n_embd), info_.n_embd},
            .tokens = {}};
  }

  std::unique_ptr<Attention> make_attention() const {
    const AttentionConfig config{&store_, attention_groups(model_.spec, layout_.groups)};
    if (options_.attention == "dense") return make_dense_attention(config);
    if (options_.attention == "gather") return make_gather_attention(config);
    const std::string misfit = tree_attention_misfit(config.groups, options_.block_size);
    if (misfit.empty()) return make_tree_attention(config, n_threads_);
    if (options_.attention == "auto" && format_ == KvFormat::kF16) {
      SPDLOG_WARN("attention: gather, because the tree kernel can't serve {}: slower where prefixes are shared",
                  misfit);
      return make_gather_attention(config);
    }
    throw model::LoadError(
        fmt::format("the tree kernel can't serve {}; --attention auto with f16 would choose gather", misfit));
  }

  void fill_info() {
    const model::ModelSpec& spec = model_.spec;
    info_ = {.model_name = spec.name,
             .architecture = spec.architecture,
             .attention = std::string(attention_->name()),
             .n_vocab = spec.n_vocab,
             .n_embd = spec.n_embd,
             .context_length = spec.context_length,
             .block_size = options_.block_size,
             .num_blocks = store_.num_blocks(),
             .bytes_per_block = layout_.page_bytes,
             .groups = layout_.groups,
             .model_digest = model_.digest,
             .layout = describe_layout(layout_, spec),
             .moves_blocks = true,
             .embedding_size = spec.embedding_size(),
             .positions = spec.has_sections()};
  }

  GgmlOptions options_;
  KvFormat format_;
  int n_threads_;
  model::Model model_;
  PageLayout layout_;
  Weights weights_;
  KvStore store_;
  std::unique_ptr<Attention> attention_;
  std::vector<attention::Rope> ropes_;
  StateStep states_;
  GraphRunner runner_;
  DecoderParts parts_;
  BatchLimits limits_;
  ExecutorInfo info_;
  double planning_seconds_ = 0;
  std::optional<Clock::time_point> waking_since_;
};

void log_instructions() {
  spdlog::info("our kernels use {} instructions", simd::target());
  if (!simd::unheeded().empty()) spdlog::warn("COPPICE_SIMD={}: it rules nothing out", simd::unheeded());
}

}  // namespace

std::unique_ptr<Executor> load_ggml_executor(model::Model model, const GgmlOptions& options, const Progress& progress) {
  route_ggml_log();
  take_ggml_aborts();
  log_instructions();
  const auto start = Clock::now();
  if (progress) progress("weights", 0.0);
  auto executor = std::make_unique<GgmlExecutor>(std::move(model), options, progress);
  constexpr double kMiB = 1024.0 * 1024.0;
  const ExecutorInfo& info = executor->info();
  spdlog::info(
      "loaded {}: {:.1f} MiB of weights read from the file's mapping, {:.1f} MiB converted; {} blocks of {} tokens, "
      "{:.2f} MiB each, {}; attention {}; {:.2f} s",
      info.model_name, static_cast<double>(executor->weights().mapped_bytes()) / kMiB,
      static_cast<double>(executor->weights().converted_bytes()) / kMiB, info.num_blocks, info.block_size,
      static_cast<double>(info.bytes_per_block) / kMiB, options.kv_format, info.attention,
      std::chrono::duration<double>(Clock::now() - start).count());
  for (const std::string& line : describe_pages(executor->layout())) spdlog::info("{}", line);
  return executor;
}

std::vector<std::string> ggml_features() {
  return model::cpu_features();
}

}  // namespace coppice::executor
