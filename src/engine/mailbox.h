// Mailbox: how other threads reach the engine's thread: requests and cancellations in the order they came,
// and the wish to stop. Thread safe; a lock is held only to push or to swap a vector.
#pragma once

#include <condition_variable>
#include <mutex>
#include <variant>
#include <vector>

#include "engine/request.h"

namespace coppice::engine {

struct Cancel {
  RequestId id = 0;
};
using Command = std::variant<Request, Cancel>;

class Mailbox {
 public:
  void push(Command command);
  void stop();

  /// Takes all commands into `out`, if that is empty (its memory is reused). Returns whether stop() was called.
  bool drain(std::vector<Command>& out);

  /// Sleeps until there is a command or stop().
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  bool stopped_ = false;
};

}  // namespace coppice::engine
