#include "cli/kv_tier.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <stop_token>
#include <system_error>
#include <utility>

#include "cli/option_checks.h"
#include "cli/size_text.h"
#include "engine/piece_names.h"
#include "model/content_hash.h"
#include "tier/disk/disk_store.h"
#include "tier/disk/real_files.h"
#include "tier/piece.h"

namespace coppice::cli {

namespace {

constexpr std::size_t kLeastBuffers = 4;

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
  for (const auto start = std::chrono::steady_clock::now(); !std::filesystem::exists(dir / "lock", error);) {
    if (stop.stop_requested() || std::chrono::steady_clock::now() - start > kPatience) return {};
    std::this_thread::sleep_for(kPause);
  }
  return dir / "model-hashes";
}

tier::DiskLimits limits_of(const TierOptions& options) {
  tier::DiskLimits limits{.bytes = bytes_for(options),
                          .free_share = options.free_share,
                          .unused_for = {},
                          .writes_a_day = options.writes_a_day};
  if (options.age_hours > 0)
    limits.unused_for = std::chrono::seconds(static_cast<std::int64_t>(std::ceil(options.age_hours * 3600)));
  return limits;
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
}

KvTier::KvTier(const TierOptions& options, std::vector<model::ModelPart> files, const executor::ExecutorInfo& info,
               const std::string& family, engine::Engine& engine)
    : settle_seconds_(options.settle_seconds) {
  const std::size_t bytes = engine::largest_piece(info);
  const std::size_t count = std::max(options.buffer_bytes / 2 / bytes, kLeastBuffers);
  loads_ = std::make_shared<tier::Buffers>(count, bytes);
  stores_ = std::make_shared<tier::Buffers>(count, bytes);
  store_ = std::make_shared<tier::DiskStore>(tier::make_real_files(options.dir), limits_of(options),
                                             tier::DiskStore::Threads{},
                                             [](const std::string& line) { spdlog::warn("{}", line); });
  // The engine and the executor's facts outlive this thread.
  hashes_ = std::jthread(
      [this, dir = options.dir, files = std::move(files), &info, family, &engine](const std::stop_token& stop) {
        const auto start = std::chrono::steady_clock::now();
        try {
          const std::string content =
              model::content_hash(files, hashes_of(dir, stop), [&] { return stop.stop_requested(); });
          if (content.empty()) {
            if (!stop.stop_requested()) spdlog::warn("the model's file has changed: nothing goes to {}", dir.string());
            return;
          }
          engine.attach({.store = store_,
                         .loads = loads_,
                         .stores = stores_,
                         .model = engine::model_name(content, family, info),
                         .about = about(info),
                         .settle_seconds = settle_seconds_});
          const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
          spdlog::info("the cache goes on in {} ({} of buffers; the model's content was known after {:.1f} s)",
                       dir.string(), size_text(2 * loads_->count() * loads_->size()), seconds.count());
        } catch (const std::exception& e) {
          spdlog::warn("nothing goes to {}: {}", dir.string(), e.what());
        }
      });
}

KvTier::~KvTier() {
  hashes_.request_stop();
  if (hashes_.joinable()) hashes_.join();
  const auto seconds = std::chrono::duration<double>(settle_seconds_);
  store_->stop(tier::Clock::now() + std::chrono::duration_cast<tier::Clock::duration>(seconds));
}

}  // namespace coppice::cli
