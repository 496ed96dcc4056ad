// RedisStore: a Store that keeps pieces in a Redis or Valkey server, where other servers find them, too. Keys: "coppice:MODEL-SPACE-PIECE". What is
// not used for some days goes (EX); what else goes for room is the server's to say (maxmemory-policy).
//
// Threads, each with a connection of its own: one answers find(), some load, one or more write, one removes what is to be forgotten.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check/mutex.h"
#include "tier/redis/redis_link.h"
#include "tier/seal.h"
#include "tier/store.h"

namespace coppice::tier {

struct RedisOptions {
  RedisAddress address;
  std::chrono::seconds keep_for = std::chrono::days(7);  ///< pieces that nobody uses
  int loaders = 2, writers = 1;
};

class RedisStore final : public Store {
 public:
  using Say = RedisHealth::Say;
  /// Returns at once. `seal`: else who has the server reads prompts, and can put wrong keys and values there.
  RedisStore(const RedisOptions& options, std::optional<Seal> seal, Say say);
  ~RedisStore() override;  ///< REQUIRES: no call is running
  RedisStore(const RedisStore&) = delete;
  RedisStore& operator=(const RedisStore&) = delete;

  void find(std::vector<Name> names, Found done) override;
  void load(const Name& name, Buffer into, Loaded done) override;
  bool offer(const Name& name, Buffer piece) override;
  void forget(const Which& which) override;
  /// `pieces` and `bytes` are not known: 0.
  Counters counters() const override;
  /// May take some seconds longer, of a server that doesn't answer.
  void stop(Clock::time_point until) override;

 private:
  struct Find {
    std::vector<Name> names;
    Found done;
  };
  struct Load {
    Name name;
    Buffer into;
    Loaded done;
  };
  struct Write {
    Name name;
    Buffer piece;  ///< none: it is to be removed
  };
  template <class T>
  struct Queue {
    check::Condition changed;
    std::deque<T> waiting;
  };

  Name outside(const Name& name) const { return seal_ ? seal_->outside(name) : name; }
  bool is_forgotten(const Name& name) const COPPICE_REQUIRES(mutex_);
  template <class T>
  std::vector<T> take(Queue<T> RedisStore::* queue_of,
                      const std::function<bool(const std::deque<T>&, std::size_t)>& more);
  void answer_finds();
  void load_pieces();
  void write_pieces();
  void keep();

  void answer(RedisLink& link, std::vector<Load> loads);
  void end_load(Load load, bool is_hit);
  bool read_into(RedisLink& link, Buffer& into);
  bool write(RedisLink& link, Write& write);
  bool remove_all(RedisLink& link, const Which& which);
  bool remove(RedisLink& link, const std::vector<std::string>& keys, const Which& which);

  const RedisOptions options_;
  const std::string keep_seconds_;
  const std::optional<Seal> seal_;
  RedisHealth health_;

  mutable check::Mutex mutex_;
  Queue<Find> finds_ COPPICE_GUARDED_BY(mutex_);
  Queue<Load> loads_ COPPICE_GUARDED_BY(mutex_);
  Queue<Write> writes_ COPPICE_GUARDED_BY(mutex_);
  std::map<Name, bool> under_way_ COPPICE_GUARDED_BY(mutex_);  ///< writes that were taken; true: forgotten meanwhile
  std::deque<Which> forgotten_ COPPICE_GUARDED_BY(mutex_);     ///< what isn't all removed yet
  check::Condition keeper_;
  std::optional<Clock::time_point> ends_ COPPICE_GUARDED_BY(mutex_);
  Counters counters_ COPPICE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace coppice::tier
