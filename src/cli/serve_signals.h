// What signals do to a server: SIGINT and SIGTERM let what runs finish, a second one ends the process at once, SIGHUP
// reads the keys again.
#pragma once

#include "check/mutex.h"
#include "port/signals.h"

namespace coppice::server {
class Server;
}

namespace coppice::cli {

/// Lives as long as the process serves. While no server is attached, the first signal ends the process with status 0.
/// REQUIRES: port::hold_signals() before.
class ServeSignals {
 public:
  explicit ServeSignals(double drain_seconds);

  /// While it lives, the server gets the signals.
  class Attached {
   public:
    Attached(ServeSignals& signals, server::Server& server) : signals_(signals) { signals.attach(&server); }
    ~Attached() { signals_.attach(nullptr); }
    Attached(const Attached&) = delete;
    Attached& operator=(const Attached&) = delete;

   private:
    ServeSignals& signals_;
  };

 private:
  void attach(server::Server* server);
  void on_signal(int number);

  const double drain_seconds_;
  check::Mutex mutex_;
  server::Server* server_ COPPICE_GUARDED_BY(mutex_) = nullptr;
  bool ending_ COPPICE_GUARDED_BY(mutex_) = false;
  port::SignalThread thread_;  ///< last: it calls the others
};

}  // namespace coppice::cli
