#include "cli/serve.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#ifdef __linux__
#include <malloc.h>
#endif

#include "cli/free_memory.h"
#include "engine/engine.h"
#include "executor/ggml/ggml_executor.h"
#include "kv/cache.h"
#include "server/engine_model.h"
#include "server/server.h"
#include "text/chat_template.h"
#include "text/vocabulary.h"

namespace coppice::cli {

namespace {

struct ServeOptions {
  std::string model;
  std::string chat_template;
  std::string share = "on";
  std::string isolate = "none";
  std::string cache_report;  ///< empty: by the other options
  std::string log_level = "info";
  std::int32_t context = 0;  ///< 0: the model's, as far as the pool holds
  executor::GgmlOptions ggml;
  engine::EngineConfig engine;
  server::ServerConfig server;
};

/// Leaves the loader when the server was told to end.
struct Interrupted {};

/// Unsigned numbers would take "-5" for a huge one.
CLI::Validator not_negative() {
  return CLI::Validator(
      [](const std::string& text) { return text.starts_with('-') ? text + " is negative" : std::string(); }, "");
}

/// Of a time. NaN is none of them, and more than eleven days would be beyond some clock's range.
CLI::Validator seconds_from(double least) {
  return CLI::Validator(
      [least](const std::string& text) {
        constexpr double kMost = 1e6;
        double value = 0.0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= least && value <= kMost
                   ? std::string()
                   : fmt::format("{} not in range [{} - {}]", text, least, kMost);
      },
      "SECONDS");
}

void add_model_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Model";
  command.add_option("--model,-m", o.model, "GGUF file")->required()->group(group);
  command.add_option("--alias", o.server.api.names.alias, "A second name for requests to use")->group(group);
  command.add_option("--chat-template", o.chat_template, "File with a Jinja template, instead of the model's own")
      ->check(CLI::ExistingFile)
      ->group(group);
  command
      .add_option("--ctx", o.context,
                  "Tokens of one request, answer included (default: the model's, as far as the pool holds)")
      ->check(CLI::Range(2, 1 << 30))
      ->group(group);
  command.add_option("--threads,-t", o.ggml.n_threads, "Threads that compute (default: one for each core)")
      ->check(CLI::Range(1, 512))
      ->group(group);
  command
      .add_option("--attention", o.ggml.attention,
                  "auto, tree (shared blocks read once), gather (blocks copied together), dense (the reference)")
      ->check(CLI::IsMember({"auto", "tree", "gather", "dense"}))
      ->capture_default_str()
      ->group(group);
}

void add_cache_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Cache and scheduling";
  command
      .add_option("--kv-bytes", o.ggml.kv_bytes,
                  "Size of the KV pool: 512MiB, 2GB, bytes (default: a quarter of free memory)")
      ->transform(not_negative())
      ->transform(CLI::AsSizeValue(true))
      ->group(group);
  command
      .add_option("--kv-format", o.ggml.kv_format,
                  "How keys and values are stored: f16; int8, half of the bytes; turbo4, a quarter")
      ->check(CLI::IsMember({"f16", "int8", "turbo4"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--block-size", o.ggml.block_size, "Tokens in a block of the pool")
      ->check(CLI::IsMember({8, 16, 32, 64}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--share", o.share, "on: requests share the blocks of equal prefixes; off: each has its own")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-batch", o.engine.max_batch, "Sequences that run at the same time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--step-tokens", o.engine.step_tokens,
                  "Tokens computed in one step; beside decoding streams, prompts get half of it")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--cache-report", o.cache_report,
          "What requests with \"cache_report\" are told: text, lengths (without the cached text), off; default: "
          "text, but lengths where several API keys share cached prefixes")
      ->check(CLI::IsMember({"text", "lengths", "off"}))
      ->group(group);
  command.add_option("--max-queue", o.engine.max_waiting, "Requests that may wait; beyond it: 429")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  command.add_option("--check-every", o.engine.check_every, "Let the cache check itself each so many steps; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
}

void add_network_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Network";
  server::ServerConfig& s = o.server;
  command.add_option("--host", s.host, "Address to listen on")->capture_default_str()->group(group);
  command.add_option("--port", s.port, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-body", s.http.max_body_bytes, "Largest request body: 16MiB, bytes")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(1024.0, 1e12))
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-connections", s.http.max_connections, "Open connections")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  command.add_option("--api-keys", s.api.api_keys_file, "File with the keys that clients may use, one a line")
      ->check(CLI::ExistingFile)
      ->group(group);
  command.add_option("--isolate", o.isolate, "keys: requests share cached prefixes with those of the same key only")
      ->check(CLI::IsMember({"none", "keys"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--request-seconds", s.api.request_seconds, "Longest time for a request; 0: no limit")
      ->check(seconds_from(0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--idle-seconds", s.http.idle_seconds, "Close a connection without requests after this time")
      ->check(seconds_from(0.001))
      ->capture_default_str()
      ->group(group);
  command.add_option("--write-seconds", s.http.write_seconds, "Drop a client that takes nothing for this time")
      ->check(seconds_from(0.001))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--ping-seconds", s.api.ping_seconds,
                  "Send a comment to a stream that is silent for this time; 0: never")
      ->check(seconds_from(0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--drain-seconds", s.drain_seconds, "Time for running requests to end after SIGINT or SIGTERM")
      ->check(seconds_from(0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--log-level", o.log_level, "What is logged")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str()
      ->group(group);
}

/// glibc learns from each large block that is freed to take the next ones (up to 32 MiB) from its arenas, which keep what
/// they got: a few large bodies, and the process holds their memory for good, in each arena again. With fixed
/// thresholds large blocks go back to the system when they are freed. No step allocates blocks of this size.
void keep_memory_flat() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
#endif
}

/// What cannot be written (the disk is full, the reader of the pipe is gone) is lost, and the server goes on: spdlog's sink
/// looks at no result, and SIGPIPE must not end the process. Sockets never raise it.
void start_logging(const std::string& level) {
  std::signal(SIGPIPE, SIG_IGN);
  spdlog::set_default_logger(spdlog::stderr_color_mt("coppice"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(spdlog::level::from_str(level == "warn" ? "warning" : level));
}

std::string read_file(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.empty()) throw std::runtime_error(fmt::format("'{}' is empty.", path));
  return text;
}

/// Checks what can be checked before a byte is loaded, and fills in the pool's size.
void settle_memory(ServeOptions& o) {
  std::error_code error;
  const std::size_t file_bytes = std::filesystem::file_size(o.model, error);
  if (error) throw std::runtime_error(fmt::format("Cannot read the model '{}': {}.", o.model, error.message()));
  const std::size_t free = free_memory();
  if (o.ggml.kv_bytes == 0) {
    if (free == 0) throw std::runtime_error("Cannot tell how much memory is free: choose --kv-bytes.");
    o.ggml.kv_bytes = free / 4;
  }
  if (free > 0 && (file_bytes > free || o.ggml.kv_bytes > free - file_bytes))
    throw std::runtime_error(
        fmt::format("Too little memory: the KV pool ({}) and the model ({}) do not fit into the {} that are free; "
                    "lower --kv-bytes.",
                    size_text(o.ggml.kv_bytes), size_text(file_bytes), size_text(free)));
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

std::int32_t choose_context(std::int32_t wanted, const kv::Cache& cache, const executor::ExecutorInfo& info) {
  const std::int32_t fits = longest_sequence(cache, info);
  if (wanted > fits)
    throw std::runtime_error(fmt::format(
        "A context of {} tokens does not fit into the KV pool, which holds {}: raise --kv-bytes or lower --ctx.",
        wanted, fits));
  if (wanted > info.context_length)
    spdlog::warn("--ctx {} is beyond the {} tokens that the model was trained for", wanted, info.context_length);
  const std::int32_t context = wanted > 0 ? wanted : std::min(info.context_length, fits);
  if (context < 2) throw std::runtime_error("Too little memory: the KV pool holds no request; raise --kv-bytes.");
  return context;
}

kv::Cache make_cache(const ServeOptions& o, const executor::ExecutorInfo& info) {
  kv::CacheConfig config;
  config.block_size = info.block_size;
  config.num_blocks = info.num_blocks;
  config.bytes_per_block = info.bytes_per_block;
  config.groups = info.groups;
  config.max_extend = std::max(o.engine.step_tokens, o.engine.max_batch + 1);  // the scheduler's smallest step
  config.share = o.share == "on";
  config.model = info.model_digest;
  config.layout = info.layout;
  return kv::Cache(std::move(config));
}

void log_ready(const server::Server& server, const ServeOptions& o, const executor::ExecutorInfo& info) {
  const auto blocks = static_cast<std::size_t>(info.num_blocks - 1);
  spdlog::info("KV pool: {} bytes ({}), {} tokens in {} blocks of {}; {} tokens per request; sharing {}",
               blocks * info.bytes_per_block, size_text(blocks * info.bytes_per_block),
               blocks * static_cast<std::size_t>(info.block_size), blocks, info.block_size, o.engine.context_length,
               o.share);
  spdlog::info("ready: {} serves {} at {}/v1", info.attention, o.server.api.names.id, server.url());
}

/// Before the engine goes, the server's thread must be gone: it may still ask it. Lives on the engine's thread, which by
/// its end has left Engine::run().
struct ServerEnd {
  server::Server& server;
  ~ServerEnd() {
    server.model_ended();  // an exception would be lost if the process ended without waiting for it
    server.drain();
    server.join();
  }
};

/// Loads everything on this thread, which then is the engine's, until the server ends.
void load_and_run(ServeOptions& o, server::Server& server) {
  const auto progress = [&server](std::string_view stage, double fraction) {
    if (server.ending()) throw Interrupted{};
    server.set_progress(std::string(stage), fraction);
  };
  progress("vocabulary", 0);
  const auto vocabulary = std::make_shared<const text::Vocabulary>(o.model);
  const auto chat_template = std::make_shared<const text::ChatTemplate>(vocabulary, read_file(o.chat_template));
  o.ggml.model_path = o.model;
  o.ggml.context = o.context;
  o.ggml.max_rows = std::max(o.engine.step_tokens, o.engine.max_batch + 1);  // the scheduler's smallest budget
  o.ggml.max_sequences = o.engine.max_batch;
  const auto executor = executor::load_ggml_executor(o.ggml, progress);
  progress("starting", 1);

  const executor::ExecutorInfo& info = executor->info();
  if (vocabulary->size() > info.n_vocab) {
    throw std::runtime_error(fmt::format("The model file is broken: {} tokens in the vocabulary, {} in the embedding.",
                                         vocabulary->size(), info.n_vocab));
  }
  if (info.attention == "dense") o.share = "off";  // the reference shares nothing [K14]
  kv::Cache cache = make_cache(o, info);
  o.engine.context_length = choose_context(o.context, cache, info);
  o.engine.on_finding = [](const std::string& finding) { spdlog::error("cache integrity: {}", finding); };
  engine::Engine engine(std::move(cache), *executor, o.engine, server.sink());
  const server::ModelFacts facts{.architecture = info.architecture,
                                 .attention = info.attention,
                                 .kv_format = o.ggml.kv_format,
                                 .n_vocab = std::min(info.n_vocab, vocabulary->size()),
                                 .context_length = o.engine.context_length,
                                 .max_batch = o.engine.max_batch,
                                 .max_waiting = o.engine.max_waiting,
                                 .share = o.share == "on"};
  server.ready(std::make_shared<server::EngineModel>(facts, vocabulary, chat_template, engine));
  const ServerEnd server_end{server};
  log_ready(server, o, info);
  engine.run();
}

/// The text behind a prefix may be another client's: where keys tell clients apart, it is theirs alone to see.
server::CacheReports cache_reports(const ServeOptions& o) {
  if (o.cache_report == "off") return server::CacheReports::kOff;
  const bool strangers = !o.server.api.api_keys_file.empty() && o.isolate == "none";
  const bool text = o.cache_report.empty() ? !strangers : o.cache_report == "text";
  return text ? server::CacheReports::kText : server::CacheReports::kLengths;
}

int serve(ServeOptions o) {
  keep_memory_flat();
  start_logging(o.log_level);
  o.server.api.isolate_keys = o.isolate == "keys";
  if (o.server.api.isolate_keys && o.server.api.api_keys_file.empty())
    throw std::runtime_error("--isolate keys needs --api-keys: without keys there is nobody to tell apart.");
  settle_memory(o);
  o.server.api.names.id = std::filesystem::path(o.model).stem().string();
  o.server.handle_signals = true;
  o.server.api.cache_reports = cache_reports(o);
  server::Server server(o.server);
  server.start();
  spdlog::info("listening on {}, loading {}", server.url(), o.model);
  try {
    load_and_run(o, server);
  } catch (const Interrupted&) {
    server.join();
  }
  spdlog::info("ended");
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("serve", "Serve a GGUF model over HTTP, in OpenAI's API");
  auto options = std::make_shared<ServeOptions>();
  add_model_options(*command, *options);
  add_cache_options(*command, *options);
  add_network_options(*command, *options);
  command->callback([options, &exit_code] { exit_code = serve(*options); });
}

}  // namespace coppice::cli
