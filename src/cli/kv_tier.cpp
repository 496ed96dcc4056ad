#include "cli/kv_tier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <future>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <system_error>
#include <utility>

#include "cli/kept_responses.h"
#include "cli/option_checks.h"
#include "cli/private_file.h"
#include "cli/size_text.h"
#include "engine/piece_names.h"
#include "model/content_hash.h"
#include "port/mapping.h"
#include "tier/disk/disk_store.h"
#include "tier/disk/real_files.h"
#include "tier/host_store.h"
#include "tier/piece.h"
#include "tier/redis/redis_store.h"
#include "tier/store_pair.h"

namespace coppice::cli {

namespace {

constexpr std::size_t kLeastBuffers = 4;

/// Of the host's memory, for blocks that come and go: those that a step stores, and copies for other tiers.
std::size_t spare_buffers(std::size_t all) {
  return std::clamp<std::size_t>(all / 8, 1, 64);
}

std::uint64_t bytes_for(const TierOptions& options) {
  if (options.bytes > 0) return options.bytes;
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(options.dir, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const auto space = std::filesystem::space(there, error);
  return error ? 0 : space.available / 4;
}

/// Where hashes of models are kept: in the folder, once it is known for a cache's. Empty: nowhere.
std::filesystem::path hashes_of(const std::filesystem::path& dir, const std::stop_token& stop) {
  constexpr std::chrono::seconds kPatience{2};
  constexpr std::chrono::milliseconds kPause{10};
  std::error_code error;
  if (dir.empty()) return {};
  for (const auto start = std::chrono::steady_clock::now(); !std::filesystem::exists(dir / "lock", error);) {
    if (stop.stop_requested() || std::chrono::steady_clock::now() - start > kPatience) return {};
    std::this_thread::sleep_for(kPause);
  }
  return dir / "model-hashes";
}

std::chrono::seconds hours(double n) {
  return std::chrono::seconds(static_cast<std::int64_t>(std::ceil(n * 3600)));
}

tier::DiskLimits limits_of(const TierOptions& options) {
  tier::DiskLimits limits{.bytes = bytes_for(options),
                          .free_share = options.free_share,
                          .unused_for = {},
                          .writes_a_day = options.writes_a_day};
  if (options.age_hours > 0) limits.unused_for = hours(options.age_hours);
  return limits;
}

/// Of "USER:PASSWORD", or a password alone.
void log_in(tier::RedisAddress& address, const std::string& login) {
  const auto colon = login.find(':');
  if (colon != std::string::npos) address.user = login.substr(0, colon);
  address.password = login.substr(colon == std::string::npos ? 0 : colon + 1);
}

std::string host_and_port(const tier::RedisAddress& address) {
  return fmt::format("{}:{}", address.host, address.port);
}

void say(const std::string& line) {
  spdlog::warn("{}", line);
}

/// Of `far`, the nearer one's `copies` as StorePair has them; either may be none.
std::unique_ptr<tier::Store> both(std::unique_ptr<tier::Store> near, std::unique_ptr<tier::Store> far,
                                  const std::shared_ptr<tier::Buffers>& copies, bool far_takes_once) {
  if (near == nullptr) return far;
  if (far == nullptr) return near;
  return std::make_unique<tier::StorePair>(std::move(near), std::move(far), copies, far_takes_once);
}

/// copies: all buffers of the host's memory, if that holds blocks. disk_in_it: the part of it that is one.
std::unique_ptr<tier::Store> make_store(const TierOptions& options, const std::shared_ptr<tier::Buffers>& copies,
                                        const tier::DiskStore*& disk_in_it) {
  std::unique_ptr<tier::Store> host, redis;
  std::unique_ptr<tier::DiskStore> disk;
  if (options.host_bytes > 0)
    host = std::make_unique<tier::HostStore>(copies->count() - spare_buffers(copies->count()));
  if (!options.dir.empty())
    disk = std::make_unique<tier::DiskStore>(tier::make_real_files(options.dir), limits_of(options),
                                             tier::DiskStore::Threads{}, say, options.seal);
  disk_in_it = disk.get();
  if (!options.url.empty())
    redis = std::make_unique<tier::RedisStore>(
        tier::RedisOptions{.address = options.redis, .keep_for = hours(options.url_age_hours)}, options.seal, say);
  auto far = both(std::move(disk), std::move(redis), copies, /*far_takes_once=*/true);
  return both(std::move(host), std::move(far), copies, options.all_evicted);
}

std::string about(const executor::ExecutorInfo& info) {
  std::string text = fmt::format("{}; {}", info.model_name, info.layout);
  text.resize(std::min(text.size(), tier::kMostAbout));
  return text;
}

}  // namespace

void add_tier_options(CLI::App& command, TierOptions& o) {
  const char* group = "Second tier of the cache";
  command
      .add_option("--kv-dir", o.dir,
                  "Folder in which the cache outlives the server: what is used twice, and what is cached at the end. "
                  "Prompts can be read from it")
      ->group(group);
  command.add_option("--kv-dir-bytes", o.bytes, "Bytes that it may take: 20GB (default: a quarter of what is free)")
      ->transform(size())
      ->group(group);
  command
      .add_option("--kv-dir-age", o.age_hours,
                  "What was not used for so many hours goes; 0: it stays until there is no room")
      ->check(between(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  command.add_option("--kv-dir-free", o.free_share, "The part of the file system that stays free")
      ->check(between(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--kv-dir-writes", o.writes_a_day, "Most bytes that are written in a day; 0: no limit")
      ->transform(size())
      ->check(between(0.0, 1e18))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--host-kv-bytes", o.host_bytes,
                  "Memory of this machine for blocks that a GPU's pool gives up: 40GB (default: none)")
      ->transform(size())
      ->group(group);
  command
      .add_option_function<std::string>(
          "--kv-write", [&o](const std::string& what) { o.all_evicted = what == "evicted"; },
          "What goes to --kv-dir and --kv-url: 'twice', what is used a second time; 'evicted', also all that the pool "
          "gives up")
      ->check(CLI::IsMember({"twice", "evicted"}))
      ->default_str("twice")
      ->group(group);
  command
      .add_option(
          "--kv-url", o.url,
          "Redis or Valkey server in which blocks lie, too, for all servers that use it: redis://HOST:PORT/DB, or "
          "rediss:// for TLS. Wants --kv-secret")
      ->type_name("URL")
      ->group(group);
  command.add_option("--kv-url-age", o.url_age_hours, "What nobody used there for so many hours goes")
      ->check(between(0.01, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kv-login", o.login_file,
                  "File with USER:PASSWORD, or a password, for that server (without: what COPPICE_KV_LOGIN says)")
      ->type_name("FILE")
      ->group(group);
  command
      .add_option("--kv-secret", o.secret_file,
                  "File with a secret of at least 32 bytes, the same for all servers that share blocks. They are "
                  "encrypted and authenticated with it in --kv-url and --kv-dir")
      ->type_name("FILE")
      ->group(group);
  command
      .add_flag("--kv-trust-store", o.trusts_store,
                "Use --kv-url without a secret: who can write to that server then decides what models answer")
      ->group(group);
}

std::string TierOptions::places() const {
  std::vector<std::string> all;
  if (host_bytes > 0) all.push_back(size_text(host_bytes) + " of memory");
  if (!dir.empty()) all.push_back(dir.string());
  if (!url.empty()) all.push_back(host_and_port(redis));
  return fmt::format("{}", fmt::join(all, " and "));
}

void settle_tier(TierOptions& o) {
  if (!o.secret_file.empty()) {
    if (!o.lasting())
      throw std::runtime_error("--kv-secret seals what --kv-dir or --kv-url keep, and neither is given.");
    const std::string secret = read_private(o.secret_file, "The file of --kv-secret");
    if (secret.size() < tier::Seal::kLeastSecret)
      throw std::runtime_error(
          fmt::format("The secret in '{}' has {} bytes, and needs {}: openssl rand -hex 32 makes one.",
                      o.secret_file.string(), secret.size(), tier::Seal::kLeastSecret));
    o.seal.emplace(std::as_bytes(std::span(secret)));
  }
  if (o.url.empty()) return;
  const auto address = tier::parse_redis_url(o.url);
  if (!address) throw std::runtime_error(fmt::format("--kv-url '{}': {}", o.url, address.error()));
  o.redis = *address;
  const char* const login = std::getenv("COPPICE_KV_LOGIN");
  if (!o.login_file.empty()) {
    log_in(o.redis, read_private(o.login_file, "The file of --kv-login"));
  } else if (login != nullptr) {
    log_in(o.redis, login);
  }
  if (!o.seal && !o.trusts_store)
    throw std::runtime_error(
        "--kv-url needs --kv-secret FILE: who can read that server would read prompts, and who can write to it would "
        "decide what is answered; --kv-trust-store says that nobody else can.");
}

KvTier::KvTier(const TierOptions& options, std::vector<model::ModelPart> files, executor::Executor& executor,
               const std::string& family, engine::Engine& engine, Restore restore, events::StoredBlocks* told)
    : options_(options), executor_(executor) {
  const executor::ExecutorInfo& info = executor.info();
  const std::size_t bytes = engine::largest_piece(info) + (options.seal ? tier::Seal::kBytes : 0);
  const std::size_t count = std::max(options.buffer_bytes / 2 / bytes, kLeastBuffers);
  loads_ = std::make_shared<tier::Buffers>(count, bytes);
  const std::size_t held = options.host_bytes / bytes;
  stores_ = std::make_shared<tier::Buffers>(options.host_bytes > 0 ? std::max(held, 2 * kLeastBuffers) : count, bytes);
  store_ = make_store(options, stores_, disk_);
  if (disk_ != nullptr) {
    responses_ = std::jthread(
        [this, restore = std::move(restore)](const std::stop_token& stop) { restore_responses(stop, restore); });
  }
  hashes_ = std::jthread([this, files = std::move(files), &info, family, &engine, told](const std::stop_token& stop) {
    const std::string places = options_.places();
    const auto start = std::chrono::steady_clock::now();
    try {
      const std::string content = content_of(files, info, stop);
      if (content.empty()) return;
      know_memory();
      const auto model = engine::model_name(content, family, info);
      if (told != nullptr) tell(*told, model, info);
      engine.attach({.store = store_,
                     .loads = loads_,
                     .stores = stores_,
                     .model = model,
                     .about = about(info),
                     .origins = told != nullptr,
                     .lasting = options_.lasting(),
                     .all_evicted = options_.host_bytes > 0 || options_.all_evicted});
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      spdlog::info("the cache goes on in {} ({} of buffers; ready after {:.1f} s)", places,
                   size_text(loads_->memory().size() + stores_->memory().size()), seconds.count());
    } catch (const std::exception& e) {
      spdlog::warn("nothing goes to {}: {}", places, e.what());
    }
  });
}

// What never leaves this process needs no more than the tree has: its digest samples the model's content.
std::string KvTier::content_of(const std::vector<model::ModelPart>& files, const executor::ExecutorInfo& info,
                               const std::stop_token& stop) const {
  if (!options_.lasting()) return "here " + info.model_digest;
  std::string content =
      model::content_hash(files, hashes_of(options_.dir, stop), [&] { return stop.stop_requested(); });
  if (content.empty() && !stop.stop_requested())
    spdlog::warn("the model's file has changed: nothing goes to {}", options_.places());
  return content;
}

void KvTier::tell(events::StoredBlocks& told, const std::array<std::uint8_t, 16>& model,
                  const executor::ExecutorInfo& info) {
  told.start({.block_size = static_cast<std::size_t>(info.block_size),
              .name = [model](const kv::Digest& digest, const kv::Namespace& ns) {
                return engine::piece_name(model, engine::space_name(ns), digest, 0);
              }});
  store_->observe(told, model);
}

// Piece by piece: a driver holds a lock meanwhile that steps want, too.
void KvTier::know_memory() {
  constexpr std::size_t kAtOnce = std::size_t{1} << 30;
  for (tier::Buffers* const buffers : {stores_.get(), loads_.get()}) {
    const std::size_t most = std::max(kAtOnce / buffers->size(), std::size_t{1}) * buffers->size();
    for (auto rest = buffers->memory(); !rest.empty();) {
      const auto next = rest.first(std::min(most, rest.size()));
      rest = rest.subspan(next.size());
      port::prefer_huge_pages(next);  // the driver takes them in half the time
      if (executor_.know_memory(next)) {
        known_.push_back(next);
      } else if (executor_.depth() > 0) {
        spdlog::warn("the GPU's driver doesn't take {} of memory: blocks are copied more slowly there",
                     size_text(next.size()));
      }
    }
  }
}

void KvTier::restore_responses(const std::stop_token& stop, const Restore& restore) {
  constexpr std::chrono::milliseconds kPause{50};
  while (!disk_->counters().on) {
    if (stop.stop_requested()) return;
    std::this_thread::sleep_for(kPause);
  }
  try {
    if (const std::string text = left_responses(options_.dir, options_.seal); !text.empty()) {
      std::future<void> there = restore(text);
      for (bool ends = false; there.wait_for(kPause) != std::future_status::ready; ends = stop.stop_requested())
        if (ends) return;  // the server ended before them: the folder keeps what it has
      there.get();
    }
  } catch (const std::exception& e) {
    spdlog::warn("stored responses in {} can't be read: {}", options_.dir.string(), e.what());
  }
  forget_responses(options_.dir);
  restored_ = true;
}

void KvTier::keep(std::string_view responses) {
  responses_.request_stop();
  if (responses_.joinable()) responses_.join();
  if (disk_ == nullptr || !disk_->counters().on || !restored_) return;
  const std::string why = keep_responses(options_.dir, options_.seal, responses);
  if (!why.empty()) spdlog::warn("stored responses can't be kept in {}: {}", options_.dir.string(), why);
}

KvTier::~KvTier() {
  for (std::jthread* const thread : {&hashes_, &responses_}) {
    thread->request_stop();
    if (thread->joinable()) thread->join();
  }
  store_->stop(tier::Clock::now() + std::chrono::seconds(1));
  for (const auto memory : known_) executor_.forget_memory(memory);
}

}  // namespace coppice::cli
