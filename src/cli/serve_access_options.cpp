// The options of `coppice serve` that say who may reach it, for how long, and what it does where a request says
// nothing.
#include "cli/serve_access_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cli/option_checks.h"
#include "cli/serve_options.h"

namespace coppice::cli {
namespace {

/// Of a header's name (RFC 9110, 5.1). Empty: it is one.
std::string complaint_about_field_name(const std::string& name) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::strchr("!#$%&'*+-.^_`|~", c) != nullptr;
  };
  return !name.empty() && std::ranges::all_of(name, fits) ? "" : "the name of a header, such as X-Tenant";
}

std::string complaint_about_host(const std::string& host) {
  if (host.empty()) return "it is empty, which would be all addresses: say 0.0.0.0 or :: for these";
  if (host.ends_with(".sock") || host.starts_with('/') || host.starts_with("unix:"))
    return fmt::format("{} is a socket in the file system, and none is served: write 127.0.0.1, and --port", host);
  if (host.contains(',')) return fmt::format("{} are several addresses: write one, or 0.0.0.0 for all", host);
  return {};
}

constexpr const char* kNetwork = "Network";  // a heading of --help

void add_network_options(CLI::App& command, server::ServerConfig& s) {
  const char* group = kNetwork;
  command.add_option("--host", s.host, "Address to listen on, or a name: all of its addresses")
      ->check(complaint_about_host)
      ->envname("LLAMA_ARG_HOST")
      ->capture_default_str()
      ->group(group);
  command.add_option("--port", s.port, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->envname("LLAMA_ARG_PORT")
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-body", s.http.max_body_bytes, "Largest request body: 16MiB, bytes")
      ->transform(size())
      ->check(between(1024.0, 1e12))
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-connections", s.http.max_connections, "Most open connections")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str()
      ->group(group);
}

/// A server that was to have keys must not be open to all because a variable was not filled in: set and empty is not
/// unset.
void refuse_empty_keys(const ServeOptions& o) {
  if (!o.server.api.api_keys.empty() || !o.server.api.api_keys_file.empty()) return;
  for (const char* name : {"LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE", "VLLM_API_KEY"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::string_view(value).find_first_not_of(", \t\r\n") == std::string_view::npos)
      throw CLI::ValidationError(name, "it is set, and holds nothing: unset it to serve without keys");
  }
}

/// Who may call, and what they are shown and kept apart from.
void add_access_options(CLI::App& command, ServeOptions& o) {
  command.parse_complete_callback([&o] { refuse_empty_keys(o); });
  const char* group = kNetwork;
  server::ServerConfig& s = o.server;
  command
      .add_option("--api-keys,--api-key-file", s.api.api_keys_file,
                  "File with the keys that clients may use, one a line")
      ->check(CLI::ExistingFile)
      ->envname("LLAMA_ARG_API_KEY_FILE")
      ->group(group);
  command
      .add_option("--api-key", s.api.api_keys,
                  "Keys that clients may use. Who sees the process list sees them: prefer a file, or LLAMA_API_KEY")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(given())
      ->envname("LLAMA_API_KEY")
      ->group(group);
  command
      .add_option("--operator-keys", s.api.operator_keys_file,
                  "File with the operator's keys, one a line: they may also reset the cache")
      ->check(CLI::ExistingFile)
      ->group(group);
  command
      .add_option("--keep-billing-header", s.api.keeps_billing,
                  "on: /v1/messages keeps system blocks that begin with x-anthropic-billing-header")
      ->transform(CLI::CheckedTransformer(std::map<std::string, bool>{{"on", true}, {"off", false}}))
      ->default_str("off")
      ->group(group);
  command
      .add_option("--cors,--cors-origins", s.api.cors_origins,
                  "Web pages that may call from a browser: their origins, separated by commas; localhost: this "
                  "machine's; *: all")
      ->check(origins())
      ->envname("LLAMA_ARG_CORS_ORIGINS")
      ->group(group);
  command
      .add_option(
          "--hosts", s.api.hosts,
          "Without keys: names of this server that requests may use besides its addresses and localhost; *: any")
      ->group(group);
  command
      .add_flag(
          "--no-page,--no-ui,--no-webui", [&s](std::int64_t) { s.api.serves_page = false; }, "Leave out the page at /")
      ->group(group);
  command.add_flag(
             "--no-slots", [&s](std::int64_t) { s.api.serves_slots = false; }, "Leave out what /slots tells")
      ->group(group);
  command.add_option("--isolate", o.isolate, "keys: requests share cached prefixes with those of the same key only")
      ->check(CLI::IsMember({"none", "keys"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--salt-header", s.http.salt_field,
          "A header that a trusted proxy sets on every request: its value is the request's cache_salt, whatever "
          "the body says")
      ->check(CLI::Validator(complaint_about_field_name, ""))
      ->group(group);
  command
      .add_option("--response-store", s.api.response_store_bytes,
                  "Memory for responses that /v1/responses stores: 64MiB, bytes; 0: none is stored")
      ->transform(size())
      ->check(between(0.0, 1e15))
      ->capture_default_str()
      ->group(group);
}

void add_time_options(CLI::App& command, server::ServerConfig& s) {
  const char* group = kNetwork;
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
      .add_option("--ping-seconds,--sse-ping-interval", s.api.ping_seconds,
                  "Send a comment to a stream that is silent for this time; 0: never")
      ->transform(read_as({{"-1", "0"}}))
      ->check(seconds_from(0))
      ->envname("LLAMA_ARG_SSE_PING_INTERVAL")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--drain-seconds", s.drain_seconds, "Time that running requests get to end after SIGINT or SIGTERM")
      ->check(seconds_from(0))
      ->capture_default_str()
      ->group(group);
}

void add_log_options(CLI::App& command, ServeOptions& o) {
  const char* group = kNetwork;
  command
      .add_flag("--verbose,-v", o.server.api.verbose,
                "Log at level debug, and say in chats' answers which prompt the model got (__verbose)")
      ->transform(on_and_off("true", "false"))
      ->envname("LLAMA_ARG_VERBOSE")
      ->group(group);
  command
      .add_option("--request-log", o.server.api.request_log,
                  "Add a line of JSON for each request to this file; -: to standard output")
      ->group(group);
  command.add_option("--log-level", o.log_level, "What is logged")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str()
      ->group(group);
}

/// Names and meanings are llama-server's.
void add_defaults(CLI::App& command, server::GenerationDefaults& d) {
  const char* group = "For requests that don't say";
  command.add_option("--temp,--temperature", d.temperature, "Temperature")
      ->check(between(0.0, 100.0))
      ->envname("LLAMA_ARG_TEMPERATURE")
      ->group(group);
  command.add_option("--top-k", d.top_k, "Draw from so many tokens; 0: all")
      ->check(CLI::Range(-1, 1 << 30))
      ->envname("LLAMA_ARG_TOP_K")
      ->group(group);
  command.add_option("--top-p", d.top_p, "Draw from the likeliest that make up this probability")
      ->check(between(1e-6, 1.0))
      ->envname("LLAMA_ARG_TOP_P")
      ->group(group);
  command.add_option("--min-p", d.min_p, "Draw from those of at least this share of the likeliest's probability")
      ->check(between(0.0, 1.0))
      ->envname("LLAMA_ARG_MIN_P")
      ->group(group);
  command.add_option("--repeat-penalty", d.repeat_penalty, "Above 1: repeats become less likely")
      ->check(between(1e-3, 1e3))
      ->envname("LLAMA_ARG_REPEAT_PENALTY")
      ->group(group);
  command.add_option("--presence-penalty", d.presence_penalty, "Above 0: tokens that came before become less likely")
      ->check(between(-2.0, 2.0))
      ->envname("LLAMA_ARG_PRESENCE_PENALTY")
      ->group(group);
  command.add_option("--frequency-penalty", d.frequency_penalty, "The same, for each time that they came")
      ->check(between(-2.0, 2.0))
      ->envname("LLAMA_ARG_FREQUENCY_PENALTY")
      ->group(group);
  command
      .add_option_function<std::int64_t>(
          "--seed,-s",
          [&d](std::int64_t seed) {
            d.seed.reset();
            if (seed >= 0) d.seed = static_cast<std::uint64_t>(seed);
          },
          "Of the random numbers; -1: random, the default")
      ->check(CLI::Range(std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()))
      ->group(group);
  command
      .add_option_function<std::int32_t>(
          "--n-predict,-n,--predict",
          [&d](std::int32_t n) {
            d.max_tokens.reset();
            if (n > 0) d.max_tokens = n;
          },
          "Tokens of an answer; -1: as far as the context goes, the default")
      ->check(whole_from(1, {-1, -2}))
      ->envname("LLAMA_ARG_N_PREDICT")
      ->group(group);
}

}  // namespace

void add_access_option_groups(CLI::App& command, ServeOptions& options) {
  add_network_options(command, options.server);
  add_access_options(command, options);
  add_time_options(command, options.server);
  add_log_options(command, options);
  add_defaults(command, options.server.api.defaults);
}

}  // namespace coppice::cli
