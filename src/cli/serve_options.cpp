#include "cli/serve_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace coppice::cli {
namespace {

/// For unsigned numbers, which would read "-5" as a huge one.
CLI::Validator not_negative() {
  return CLI::Validator(
      [](const std::string& text) { return text.starts_with('-') ? text + " is negative" : std::string(); }, "");
}

/// A time from `least` to a million seconds (eleven days: more would overflow some clocks). Refuses NaN.
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
                  "Most tokens computed in one step; while streams decode, prompts get half of it")
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
  command.add_option("--max-queue", o.engine.max_waiting, "Requests that may wait; further ones get a 429")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--check-every", o.engine.check_every, "Check the cache's integrity every so many steps; 0: never")
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
  command.add_option("--max-connections", s.http.max_connections, "Most open connections")
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
  command.add_option("--request-seconds", s.api.request_seconds, "Longest time that a request may take; 0: no limit")
      ->check(seconds_from(0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--idle-seconds", s.http.idle_seconds, "Close a connection without requests after this time")
      ->check(seconds_from(0.001))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--write-seconds", s.http.write_seconds,
                  "Close a connection whose client reads nothing for this time")
      ->check(seconds_from(0.001))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--ping-seconds", s.api.ping_seconds,
                  "Send a comment to a stream that is silent for this time; 0: never")
      ->check(seconds_from(0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--drain-seconds", s.drain_seconds, "Time that running requests get to end after SIGINT or SIGTERM")
      ->check(seconds_from(0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--log-level", o.log_level, "What is logged")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& options) {
  add_model_options(command, options);
  add_cache_options(command, options);
  add_network_options(command, options);
}

}  // namespace coppice::cli
