// KvEvents: the events for routers that `serve` was told to send, from the options to the engine.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "events/change_feed.h"
#include "events/publisher.h"
#include "kv/cache.h"

namespace CLI {
class App;
}

namespace coppice::cli {

struct KvEventOptions {
  std::string endpoint;  ///< empty: none are sent
  std::string replay;
  std::string topic;
  std::string secret_file;  ///< EventNames'; empty: one of this process
};

void add_kv_event_options(CLI::App& command, KvEventOptions& options);

class KvEvents {
 public:
  /// Opens the sockets. Throws std::runtime_error: a sentence.
  explicit KvEvents(const KvEventOptions& options);

  /// Before the cache goes to the engine; it goes before this does.
  void watch(kv::Cache& cache);

  /// For a store, which goes before this does.
  events::StoredBlocks& stored() { return feed_.stored(); }

  /// As long as it lives the engine tells all anew when that is wanted.
  class Attached {
   public:
    Attached(KvEvents* events, engine::Engine& engine);  ///< null: nothing happens
    ~Attached();
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;

   private:
    KvEvents* events_;
  };

 private:
  events::EventNames names_;
  events::ChangeFeed feed_;
  events::Publisher publisher_;
};

}  // namespace coppice::cli
