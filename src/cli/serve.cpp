#include "cli/serve.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/cache_config.h"
#include "cli/first_step.h"
#include "cli/local_models.h"
#include "cli/memory_nodes.h"
#include "cli/opened_files.h"
#include "cli/other_variables.h"
#include "cli/projector_files.h"
#include "cli/serve_options.h"
#include "cli/serve_signals.h"
#include "cli/size_text.h"
#include "cli/which_model.h"
#include "engine/engine.h"
#include "kv/cache.h"
#include "log/stderr_sink.h"
#include "model/model.h"
#include "port/memory.h"
#include "port/process.h"
#include "port/signals.h"
#include "server/api/browser_guard.h"
#include "server/jobs/engine_model.h"
#include "server/server.h"

namespace coppice::cli {

namespace {

/// Leaves the loader when the server was told to end.
struct Interrupted {};

/// Of the main thread, which runs the engine, and of all others: recursions over what clients send have limits that fit
/// into it.
constexpr std::size_t kStackBytes = std::size_t{8} << 20;

void start_logging(const std::string& level) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("coppice", std::make_shared<log::StderrSink>()));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
}

/// The operator's choice, or the file's.
engine::Pooling choose_pooling(const std::string& wanted, model::Pooling said) {
  if (wanted.empty() && said == model::Pooling::kOther)
    spdlog::warn("the file's kind of pooling fits no decoder: an embedding will be the last token's hidden state");
  const bool mean = wanted.empty() ? said == model::Pooling::kMean : wanted == "mean";
  return mean ? engine::Pooling::kMean : engine::Pooling::kLast;
}

/// The longest sequence, prompt and answer, that the pool holds when it has it for itself.
std::int32_t longest_sequence(const kv::Cache& cache, const executor::ExecutorInfo& info) {
  const std::int64_t total = info.num_blocks - 1;
  std::int32_t fits = 0;
  for (std::int32_t low = 1,
                    high = static_cast<std::int32_t>(std::min<std::int64_t>(total * info.block_size, INT32_MAX));
       low <= high;) {
    const std::int32_t middle = low + (high - low) / 2;
    if (cache.blocks_needed(middle, 1) <= total) {
      fits = middle;
      low = middle + 1;
    } else {
      high = middle - 1;
    }
  }
  return fits;
}

/// fits: longest_sequence().
std::int32_t choose_context(std::int32_t wanted, std::int32_t fits, const executor::ExecutorInfo& info) {
  if (wanted > fits)
    throw std::runtime_error(fmt::format(
        "A context of {} tokens does not fit into the KV pool, which holds {}: raise --kv-bytes or lower --ctx.",
        wanted, fits));
  if (wanted > info.context_length)
    spdlog::warn("--ctx {} is beyond the {} tokens that the model was trained for", wanted, info.context_length);
  if (wanted <= 0 && fits < info.context_length)
    spdlog::warn("a request may have {} tokens, as the KV pool holds no more; the model has {}: raise --kv-bytes", fits,
                 info.context_length);
  const std::int32_t context = wanted > 0 ? wanted : std::min(info.context_length, fits);
  if (context < 2) throw std::runtime_error("Too little memory: the KV pool holds no request; raise --kv-bytes.");
  return context;
}

bool has_keys(const ServeOptions& o) {
  return !o.server.api.api_keys_file.empty() || !o.server.api.api_keys.empty();
}

/// Says once what pins can't have, where that isn't the operator's wish.
void log_pins(const kv::Cache& cache, const ServeOptions& o) {
  const double share = has_keys(o) ? std::min(o.engine.pin_share, o.engine.pin_share_of_key) : o.engine.pin_share;
  if (o.share != "on" || share <= 0) return;
  const std::int64_t total = cache.stats().total;
  const auto most = static_cast<std::int64_t>(o.engine.pin_share * static_cast<double>(total));
  const auto most_of_key = static_cast<std::int64_t>(share * static_cast<double>(total));
  const std::int64_t least = cache.config().n_groups() + cache.config().state_pages;
  if (most_of_key < least) {
    spdlog::warn(
        "nothing can be pinned: pinned prefixes{} may hold {} blocks of the cache, and the shortest takes {}; raise "
        "--kv-bytes or --pin-share{}",
        has_keys(o) ? " of a key" : "", most_of_key, least, has_keys(o) ? "-of-key" : "");
    return;
  }
  const std::int64_t beside = total - cache.blocks_needed(o.engine.context_length, 1);
  if (beside < most)
    spdlog::info("pinned prefixes may hold {} blocks; beyond {} they give way to a request of the whole context", most,
                 beside);
}

void log_ready(const server::Server& server, const ServeOptions& o, const executor::ExecutorInfo& info,
               std::int32_t fits) {
  const auto blocks = static_cast<std::size_t>(info.num_blocks - 1);
  spdlog::info("KV pool: {} bytes ({}), {} blocks of {} tokens, {} tokens of one text; {} per request; sharing {}",
               blocks * info.bytes_per_block, size_text(blocks * info.bytes_per_block), blocks, info.block_size, fits,
               o.engine.context_length, o.share);
  spdlog::info("ready: {} is served at {}/v1 ({} attention); its page: {}/", o.server.api.names.id, server.url(),
               info.attention, server.url());
}

/// Ends the server's thread before the engine that it asks goes. Lives on the engine's thread, after Engine::run().
struct ServerEnd {
  server::Server& server;
  KvTier* tier;  ///< null: there is none
  ~ServerEnd() {
    server.model_ended();  // an exception would be lost if the process ended without waiting for it
    server.drain();
    server.join();
    keep_responses();
  }
  void keep_responses() const noexcept try {
    if (tier != nullptr) tier->keep(server.save_responses());
  } catch (const std::exception& e) {
    spdlog::warn("stored responses are lost: {}", e.what());
  }
};

/// Seconds of those that are there to end, which requests leave for the cache.
constexpr double kMostStoring = 5;

/// Where the cache goes on. Null: nowhere.
std::unique_ptr<KvTier> open_tier(const ServeOptions& o, const std::vector<model::ModelPart>& files,
                                  executor::Executor& executor, bool on_gpu, engine::Engine& engine,
                                  server::Server& server, KvEvents* events) {
  if (!o.tier.wanted()) return nullptr;
  if (!executor.info().moves_blocks) {
    spdlog::warn("nothing goes to {}: blocks don't leave this device's memory yet", o.tier.places());
    return nullptr;
  }
  if (o.share != "on") {
    spdlog::warn("nothing goes to {}: nothing is shared", o.tier.places());
    return nullptr;
  }
  return std::make_unique<KvTier>(
      o.tier, files, executor, on_gpu ? "cuda" : "cpu", engine,
      [&server](std::string_view text) { return server.restore_responses(text); },
      events != nullptr ? &events->stored() : nullptr);
}

/// Null: none are sent.
std::unique_ptr<KvEvents> open_events(const ServeOptions& o) {
  if (o.events.endpoint.empty()) return nullptr;
  if (o.share != "on") spdlog::warn("there are no KV events: nothing is shared");
  return std::make_unique<KvEvents>(o.events);
}

/// Loads the weights and runs the engine on this thread until the server ends.
void load_and_run(ServeOptions& o, Opened opened, server::Server& server) {
  static constexpr auto kSaidEvery = std::chrono::seconds(5);
  auto progress = [&server, said = std::chrono::steady_clock::now()](std::string_view stage, double fraction) mutable {
    if (server.ending()) throw Interrupted{};
    server.set_progress(std::string(stage), fraction);
    if (const auto now = std::chrono::steady_clock::now(); now - said >= kSaidEvery) {
      said = now;
      spdlog::info("loading: {} {:.0f} %", stage, fraction * 100);
    }
  };
  const std::unique_ptr<KvEvents> events = open_events(o);
  o.ggml.context = o.context;
  const int step_rows = std::max(o.engine.step_tokens, o.engine.max_batch + 1);  // the scheduler's smallest budget
  o.ggml.max_rows = o.step_tokens || opened.device.is_gpu() ? step_rows : std::max(step_rows, kAloneTokens);
  o.ggml.max_sequences = o.engine.max_batch;
  const engine::Pooling pooling = choose_pooling(o.pooling, opened.model.spec.pooling);
  const std::vector<model::ModelPart> files = opened.model.file->files();
  const auto executor = opened.device.load(std::move(opened.model), o.ggml, progress);
  progress("starting", 1);
  try_first_step(*executor);

  if (!o.step_tokens) o.engine.alone_tokens = alone_tokens(*executor);
  const executor::ExecutorInfo& info = executor->info();
  if (info.attention == "dense") o.share = "off";  // the reference shares nothing
  kv::Cache cache(
      cache_config(*executor, chunk_tokens(info, step_rows, o.engine.alone_tokens), o.share == "on", o.tier.wanted()));
  const std::int32_t fits = longest_sequence(cache, info);
  o.engine.context_length = choose_context(o.context, fits, info);
  o.engine.on_finding = [](const std::string& finding) { spdlog::error("cache integrity: {}", finding); };
  log_pins(cache, o);
  if (events != nullptr) events->watch(cache);
  engine::Engine engine(std::move(cache), *executor, o.engine, server.sink());
  const KvEvents::Attached attached(events.get(), engine);
  const std::unique_ptr<KvTier> tier =
      open_tier(o, files, *executor, opened.device.is_gpu(), engine, server, events.get());
  const server::ModelFacts facts{.attention = info.attention,
                                 .kv_format = o.ggml.kv_format,
                                 .n_vocab = std::min(info.n_vocab, opened.vocabulary->size()),
                                 .n_embd = info.n_embd,
                                 .pooling = pooling,
                                 .context_length = o.engine.context_length,
                                 .max_batch = o.engine.max_batch,
                                 .max_waiting = o.engine.max_waiting,
                                 .share = o.share == "on",
                                 .chat_template = opened.chat_template->source(),
                                 .continues_assistant = o.continues_assistant,
                                 .bos = opened.vocabulary->bos(),
                                 .eos = opened.vocabulary->eos(),
                                 .pad = opened.vocabulary->pad(),
                                 .adds_bos = opened.vocabulary->adds_before(),
                                 .adds_eos = opened.vocabulary->adds_after(),
                                 .most_pictures = opened.pictures ? o.most_pictures : 0};
  server.ready(std::make_shared<server::EngineModel>(facts, opened.vocabulary, opened.chat_template, engine,
                                                     std::move(opened.pictures)));
  const ServerEnd server_end{server, tier.get()};
  if (!server.ending()) log_ready(server, o, info, fits);
  try {
    engine.run();
  } catch (const std::exception& e) {
    // At once: what follows tells the clients first.
    spdlog::critical("the engine cannot go on: {}", e.what());
    throw std::runtime_error(fmt::format("The engine cannot go on: {}.", e.what()));
  }
}

/// vLLM's variable, where neither an option nor llama-server's says any: else the server would be open.
void take_vllm_key(ServeOptions& o) {
  const char* key = std::getenv("VLLM_API_KEY");
  if (key != nullptr && *key != '\0' && !has_keys(o)) o.server.api.api_keys = {key};
}

/// Those that the operator gave, and the file's, which only those use who know it.
server::ServedNames served_names(std::vector<std::string> given, const std::string& file) {
  server::ServedNames names;
  names.any = std::erase(given, "*") > 0;
  names.id = given.empty() ? file : given.front();
  if (!given.empty()) names.more.assign(given.begin() + 1, given.end());
  names.unlisted = file;
  return names;
}

/// The cached text behind a prefix may be another client's. Where clients have keys and share prefixes, they get
/// lengths.
server::CacheReports cache_reports(const ServeOptions& o) {
  if (o.cache_report == "off") return server::CacheReports::kOff;
  const bool strangers = has_keys(o) && o.isolate == "none";
  const bool text = o.cache_report.empty() ? !strangers : o.cache_report == "text";
  return text ? server::CacheReports::kText : server::CacheReports::kLengths;
}

/// complaints: about variables.
int serve(ServeOptions o, const std::vector<std::string>& complaints) {
  if (o.model.empty())
    throw CLI::ParseError(fmt::format("Which model? {}", models_to_choose()), CLI::ExitCodes::RequiredError);
  port::hold_signals();
  if (o.server.api.api_keys_file.empty() && o.server.api.operator_keys_file.empty()) port::release_hangup();
  port::ensure_stack(kStackBytes);
  port::forbid_dumps();
  port::explain_lost_pages(
      "coppice: The model's file was changed or cut while it was served, or its disk fails. To replace a file, write "
      "the new one beside "
      "it and rename that (mv).\n");
  port::keep_memory_flat();
  start_logging(o.server.api.verbose ? "debug" : o.log_level);
  ServeSignals signals(o.server.drain_seconds);
  place_memory(o.numa);
  for (const std::string& complaint : complaints) spdlog::warn("{}", complaint);
  take_vllm_key(o);
  o.server.api.isolate_keys = o.isolate == "keys";
  if (o.server.api.isolate_keys && !has_keys(o))
    throw std::runtime_error("--isolate keys needs --api-keys: without keys there is nobody to tell apart.");
  if (o.projector.min_rows.value_or(0) > o.projector.max_rows.value_or(INT_MAX))
    throw std::runtime_error("--image-min-tokens must be at most --image-max-tokens.");
  settle_tier(o.tier);
  if (o.tier.lasting()) o.server.storing_seconds = std::min(kMostStoring, o.server.drain_seconds / 5);
  const LocalModel found = find_model(o.model);
  o.model = found.path.string();
  if (o.mmproj.empty() && o.looks_for_mmproj) o.found_mmproj = find_projector(found).string();
  Opened opened = open_files(o);
  o.server.api.names = served_names(o.names, found.served.empty() ? opened.model.file->name() : found.served);
  o.server.api.model_path = o.model;
  o.server.api.version = COPPICE_VERSION;
  o.server.owns_process = true;
  o.server.api.media_bytes = o.server.http.max_body_bytes;
  o.server.api.cache_reports = cache_reports(o);
  server::Server server(o.server);
  if (!has_keys(o) && !server::is_loopback(o.server.host)) {
    spdlog::warn("anybody who reaches {} may use this server: give keys with --api-keys, or listen on 127.0.0.1",
                 o.server.host);
  }
  server.start();
  const ServeSignals::Attached attached(signals, server);
  spdlog::info("listening on {}, loading {} for {}", server.url(), o.model, opened.device.text());
  try {
    load_and_run(o, std::move(opened), server);
  } catch (const Interrupted&) {
    server.join();
  }
  spdlog::info("ended");
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("serve", "Serve a GGUF model over HTTP, in OpenAI's and Anthropic's APIs");
  auto options = std::make_shared<ServeOptions>();
  add_serve_options(*command, *options);
  command->callback(
      [options, command, &exit_code] { exit_code = serve(*options, complaints_about_variables(*command)); });
}

}  // namespace coppice::cli
