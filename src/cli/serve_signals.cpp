#include "cli/serve_signals.h"

#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdlib>
#include <new>
#include <utility>

#include "server/server.h"

namespace coppice::cli {

ServeSignals::ServeSignals(double drain_seconds)
    : drain_seconds_(drain_seconds), thread_([this](int number) { on_signal(number); }) {}

void ServeSignals::attach(server::Server* server) {
  const check::Lock lock(mutex_);
  server_ = server;
}

/// Without memory for that there is no way to end in good order, and a process that was told to end must.
void ServeSignals::on_signal(int number) try {
  const check::Lock lock(mutex_);
  if (number == SIGHUP) {
    if (server_ != nullptr) server_->reload_keys();
    return;
  }
  if (std::exchange(ending_, true)) std::_Exit(128 + number);
  if (server_ == nullptr) {
    SPDLOG_INFO("signal {}: ended before anything was served", number);
    std::_Exit(EXIT_SUCCESS);
  }
  SPDLOG_INFO("signal {}: finishing what runs, for {} s at most; once more to end at once", number, drain_seconds_);
  server_->drain();
} catch (const std::bad_alloc&) {
  if (number != SIGHUP) std::_Exit(128 + number);
}

}  // namespace coppice::cli
