// What may go better a little later is asked again, some times.
#pragma once

#include <chrono>
#include <string>

#include "pull/progress.h"
#include "pull/web_client.h"

namespace coppice::pull {

/// The tries of one thing.
class Tries {
 public:
  explicit Tries(Progress& progress) : progress_(progress) {}

  /// Something was won: as if nothing had failed.
  void restart();
  /// Waits before another try, longer each time, and as long as the server wants to (a minute at most). Throws
  /// `failure`: it was the last, or it is of no use.
  void wait(const WebFailure& failure);

 private:
  Progress& progress_;
  int failed_ = 0;
};

/// Of a status that is no answer to the question for `what`.
WebFailure status_failure(const WebReply& reply, const std::string& what);

/// As WebClient::ask(), again where the server is busy or broken, or the connection broke off.
WebReply ask_patiently(WebClient& client, const WebRequest& request, const std::string& what, Progress& progress);

}  // namespace coppice::pull
