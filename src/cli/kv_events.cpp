#include "cli/kv_events.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <span>
#include <string_view>
#include <system_error>

#include "cli/private_file.h"
#include "kv/digest.h"
#include "server/api/browser_guard.h"

namespace coppice::cli {

namespace {

constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";

std::string host_of(std::string_view endpoint) {
  std::string host(endpoint.substr(kTcp.size(), endpoint.rfind(':') - kTcp.size()));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

/// ZeroMQ takes a larger number for what is left of it in 16 bits.
bool is_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), port);
  return error == std::errc() && end == text.end();
}

/// Empty: it can be bound.
std::string complaint(const std::string& endpoint) {
  if (endpoint.starts_with(kIpc) && endpoint.size() > kIpc.size()) return "";
  const auto colon = endpoint.rfind(':');
  const bool whole = endpoint.starts_with(kTcp) && colon > kTcp.size() && colon + 1 < endpoint.size();
  if (whole && (endpoint.substr(colon + 1) == "*" || is_port(std::string_view(endpoint).substr(colon + 1)))) return "";
  return "where to listen: tcp://127.0.0.1:5557 or ipc:///run/coppice/events";
}

/// ZeroMQ looks up no names to listen on.
std::string numeric(std::string endpoint) {
  constexpr std::string_view kLocal = "localhost";
  if (endpoint.starts_with(kTcp) && host_of(endpoint) == kLocal)
    endpoint.replace(kTcp.size(), kLocal.size(), "127.0.0.1");
  return endpoint;
}

void warn_of_readers(const std::string& endpoint) {
  if (!endpoint.starts_with(kTcp) || server::is_loopback(host_of(endpoint))) return;
  spdlog::warn("KV events have all prompts in them, and anybody who reaches {} gets them", endpoint);
}

events::EventNames::Secret secret_of(const KvEventOptions& options) {
  if (options.secret_file.empty()) return events::EventNames::random_secret();
  const std::string text = read_private(options.secret_file, "The secret of KV events");
  return kv::sha256(std::as_bytes(std::span(text)));
}

events::PublisherOptions publisher_options(const KvEventOptions& options) {
  return {.endpoint = numeric(options.endpoint),
          .replay = numeric(options.replay),
          .topic = options.topic,
          .say = [](const std::string& line) { spdlog::warn("{}", line); }};
}

}  // namespace

void add_kv_event_options(CLI::App& command, KvEventOptions& o) {
  const char* group = "Events for routers";
  const CLI::Validator endpoint(complaint, "");
  CLI::Option* const events =
      command
          .add_option("--kv-events", o.endpoint,
                      "Where routers subscribe to what the cache holds, as vLLM's KV events over ZeroMQ: "
                      "tcp://127.0.0.1:5557. Prompts can be read from them")
          ->check(endpoint)
          ->group(group);
  command
      .add_option("--kv-events-replay", o.replay, "Where they ask for events that they missed: tcp://127.0.0.1:5558")
      ->check(endpoint)
      ->needs(events)
      ->group(group);
  command.add_option("--kv-events-topic", o.topic, "The topic that each of them has: kv@NAME@MODEL (default: none)")
      ->needs(events)
      ->group(group);
  command
      .add_option("--kv-events-secret", o.secret_file,
                  "File with a secret that servers share: they name blocks of the same API key alike")
      ->check(CLI::ExistingFile)
      ->needs(events)
      ->group(group);
}

KvEvents::KvEvents(const KvEventOptions& options)
    : names_(secret_of(options)), publisher_(publisher_options(options), feed_) {
  warn_of_readers(options.endpoint);
  if (!options.replay.empty()) warn_of_readers(options.replay);
}

void KvEvents::watch(kv::Cache& cache) {
  cache.observe(&feed_);
  publisher_.start({.block_size = cache.config().block_size, .names = names_});
  spdlog::info("KV events: {}, blocks of {} tokens", publisher_.endpoint(), cache.config().block_size);
}

KvEvents::Attached::Attached(KvEvents* events, engine::Engine& engine) : events_(events) {
  if (events_ != nullptr) events_->feed_.on_want([&engine] { engine.wake(); });
}

KvEvents::Attached::~Attached() {
  if (events_ != nullptr) events_->feed_.on_want({});
}

}  // namespace coppice::cli
