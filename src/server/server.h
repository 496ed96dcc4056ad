// Server: the network side as a whole: one io thread, a worker, the listener, the API, and the way it all ends.
//
// Thread safety: constructed, started and joined by one thread; the other methods may be called by any.
//
// Life
//   construct  binds and listens, raises the descriptor limit
//   start      the io thread answers: /health says 503 with the progress, everything else that it is loading
//   ready      the model is there
//   drain      new requests get a 503, running ones drain_seconds, but for storing_seconds, then they are cancelled;
//              then Model::stop(), which stores what is cached until drain_seconds are over; and the io thread ends
//   join       waits for that
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "server/api/base/api_config.h"
#include "server/http/http_limits.h"
#include "server/jobs/model.h"

namespace coppice::server {

struct ServerConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  ///< 0: any free one
  HttpLimits http;
  ApiConfig api;
  double drain_seconds = 25;
  double storing_seconds = 0;  ///< of these, when requests have had theirs: to store what is cached
  int preparing_threads = 0;   ///< that parse, render and tokenize bodies; 0: as many as the machine allows
  bool owns_process = false;   ///< what cannot be interrupted when all is to end is left behind: the process ends
};

class Server {
 public:
  /// Throws ListenError, KeyFileError.
  explicit Server(ServerConfig config);
  /// Drains and joins, if nobody has.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  std::string url() const;  ///< "http://127.0.0.1:8080"

  /// For the engine's constructor. May be kept longer than the server, not called: the engine's thread ends first.
  engine::EventSink sink();

  void start();
  void set_progress(std::string stage, double fraction);
  /// A model that comes while the server ends is stopped at once.
  void ready(std::shared_ptr<Model> model);
  /// The model's thread has left it, be it by an exception: no step is under way, whatever Model::ended() says, and
  /// none will come. So drain() waits for nothing that runs.
  void model_ended();
  void drain();
  bool ending() const;  ///< drain() was called
  /// Reads the files of keys again. A file that can't be used leaves the keys as they were, and the log says why.
  void reload_keys();
  void join();

  /// Stored responses, for a file that outlives the server (response_archive.h).
  std::string save_responses() const;
  /// Ready once they are there: never, if the server ends before.
  std::future<void> restore_responses(std::string_view text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::server
