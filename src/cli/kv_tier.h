// KvTier: the second place for blocks that `serve` was told of, from the options to the engine. The model's whole
// content is hashed beside the engine's work: until that is known nothing is stored, nor found.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "events/stored_blocks.h"
#include "executor/executor.h"
#include "model/gguf_file.h"
#include "tier/redis/redis_url.h"
#include "tier/seal.h"
#include "tier/store.h"

namespace coppice::tier {
class DiskStore;
}

namespace CLI {
class App;
}

namespace coppice::cli {

struct TierOptions {
  std::filesystem::path dir;                         ///< empty: no folder
  std::uint64_t bytes = 0;                           ///< that it may take; 0: a quarter of what is free when it starts
  double age_hours = 0;                              ///< pieces that were not used for so long go; 0: never
  double free_share = 0.1;                           ///< of the file system that stays free
  std::uint64_t writes_a_day = 0;                    ///< bytes; 0: no limit
  std::size_t buffer_bytes = std::size_t{64} << 20;  ///< of memory, through which pieces go and come

  std::uint64_t host_bytes = 0;  ///< of this machine's memory; 0: none
  bool all_evicted = false;      ///< the folder and Redis get all that the pool gives up, too

  std::string url;                    ///< of a Redis server; empty: none
  double url_age_hours = 168;         ///< what was not used there for so long goes
  std::filesystem::path login_file;   ///< user and password for it
  std::filesystem::path secret_file;  ///< to seal with; empty: nothing is sealed
  bool trusts_store = false;          ///< unsealed pieces may lie in Redis
  std::optional<tier::Seal> seal;     ///< settle_tier()
  tier::RedisAddress redis;           ///< settle_tier(), if there is a url

  bool lasting() const { return !dir.empty() || !url.empty(); }  ///< there is more than memory
  bool wanted() const { return host_bytes > 0 || lasting(); }
  /// "DIR", "HOST:PORT", "DIR and HOST:PORT"; "400.0 MiB of memory and DIR".
  std::string places() const;
};

void add_tier_options(CLI::App& command, TierOptions& options);
/// Reads what the options name. Throws std::runtime_error: a sentence about what can't be.
void settle_tier(TierOptions& options);

class KvTier {
 public:
  /// Gets the stored responses that a server has left in the folder, once that is this one's, and says when they are
  /// there again. Any thread.
  using Restore = std::function<std::future<void>(std::string_view text)>;
  /// Returns at once. family: of devices whose results differ by rounding only. The executor and the engine outlive it,
  /// and what `restore` uses does, and `told`, which gets what the store holds; null: nobody is told.
  KvTier(const TierOptions& options, std::vector<model::ModelPart> files, executor::Executor& executor,
         const std::string& family, engine::Engine& engine, Restore restore, events::StoredBlocks* told);
  /// What is being written is finished: a second's worth of it, the engine has waited for the rest. REQUIRES: the
  /// engine has ended, or was never run.
  ~KvTier();
  KvTier(const KvTier&) = delete;
  KvTier& operator=(const KvTier&) = delete;

  /// For the next server, if there is a folder, and it is this one's, and what was left in it is among them. REQUIRES:
  /// the server has ended.
  void keep(std::string_view responses);

 private:
  /// Of all that decides what the model computes. Empty: it is not to be known any more.
  std::string content_of(const std::vector<model::ModelPart>& files, const executor::ExecutorInfo& info,
                         const std::stop_token& stop) const;
  void know_memory();
  void tell(events::StoredBlocks& told, const std::array<std::uint8_t, 16>& model, const executor::ExecutorInfo& info);
  void restore_responses(const std::stop_token& stop, const Restore& restore);

  const TierOptions options_;
  executor::Executor& executor_;
  std::vector<std::span<std::byte>> known_;  ///< memory, to the executor
  const tier::DiskStore* disk_ = nullptr;    ///< in store_; null: there is none
  std::shared_ptr<tier::Store> store_;
  std::shared_ptr<tier::Buffers> loads_, stores_;
  bool restored_ = false;  ///< responses_ writes it
  std::jthread hashes_, responses_;
};

}  // namespace coppice::cli
