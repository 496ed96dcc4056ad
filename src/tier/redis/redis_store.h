// RedisStore: a Store that keeps pieces in a Redis or Valkey server, where other servers find them, too. Keys:
// "coppice:MODEL-SPACE-PIECE". What is not used for some days goes (EX); what else goes for room is the server's to say
// (maxmemory-policy).
//
// Threads, each with a connection of its own: one answers find(), some load, one or more write, one removes what is to
// be forgotten. stop() may take some seconds longer than it is told, of a server that doesn't answer. A Write without a
// piece removes what is there.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/mutex.h"
#include "tier/queued_store.h"
#include "tier/redis/redis_link.h"

namespace coppice::tier {

struct RedisOptions {
  RedisAddress address;
  std::chrono::seconds keep_for = std::chrono::days(7);  ///< pieces that nobody uses
  int loaders = 2, writers = 1;
};

class RedisStore final : public QueuedStore {
 public:
  using Say = RedisHealth::Say;
  /// Returns at once. `seal`: else who has the server reads prompts, and can put wrong keys and values there.
  RedisStore(const RedisOptions& options, std::optional<Seal> seal, Say say);
  ~RedisStore() override;  ///< REQUIRES: no call is running
  RedisStore(const RedisStore&) = delete;
  RedisStore& operator=(const RedisStore&) = delete;

  bool offer(const Name& name, Buffer piece) override;
  void forget(const Which& which) override;
  bool is_at(StoreKind place) const override { return place == StoreKind::kRedis; }
  /// `pieces` and `bytes` are not known: 0.
  Counters counters() const override;

 private:
  bool is_forgotten(const Name& name) const COPPICE_REQUIRES(mutex_);
  std::vector<bool> are_forgotten(const std::vector<Name>& names);
  void load_pieces();
  void keep();

  void answer(RedisLink& link, Find find);
  void answer(RedisLink& link, std::vector<Load> loads);
  void answer(RedisLink& link, Write write);
  bool read_into(RedisLink& link, Buffer& into);
  bool write(RedisLink& link, Write& write);
  bool remove_all(RedisLink& link, const Which& which);
  bool remove(RedisLink& link, const std::vector<std::string>& keys, const Which& which);

  const RedisOptions options_;
  const std::string keep_seconds_;
  RedisHealth health_;

  std::map<Name, bool> under_way_ COPPICE_GUARDED_BY(mutex_);  ///< writes that were taken; true: forgotten meanwhile
  std::deque<Which> forgotten_ COPPICE_GUARDED_BY(mutex_);     ///< what isn't all removed yet
  Counters counters_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::tier
