// Mailbox: how other threads reach the engine's thread: requests and cancellations in the order they came, and the
// wish to stop. Thread safe; a lock is held only to push or to swap a vector.
//
// Prompts are what a client can make the engine hold most of, so they are counted here, before the engine's thread
// sees them: all open requests together have at most `max_prompt_tokens`. Of a request beyond that only its id is kept.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <variant>
#include <vector>

#include "engine/request.h"

namespace coppice::engine {

struct Cancel {
  RequestId id = 0;
};
/// A request that was too much; its prompt and samples are gone.
struct Declined {
  RequestId id = 0;
  std::int32_t prompt_tokens = 0;
};
using Command = std::variant<Request, Declined, Cancel>;

class Mailbox {
 public:
  explicit Mailbox(std::size_t max_prompt_tokens) : max_prompt_tokens_(max_prompt_tokens) {}

  void push(Request request);
  void push(Cancel cancel);
  void stop();

  /// Requests that ended gave this many prompt tokens back.
  void give_back(std::size_t prompt_tokens);

  /// Swaps `out`, which must be empty, for all commands. Returns whether stop() was called.
  bool drain(std::vector<Command>& out);

  /// Sleeps until there is a command or stop().
  void wait();

  std::int64_t submitted() const { return submitted_; }  ///< requests pushed since start

 private:
  const std::size_t max_prompt_tokens_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Command> commands_;
  std::size_t prompt_tokens_ = 0;  // of open requests
  std::atomic<std::int64_t> submitted_ = 0;
  bool stopped_ = false;
};

}  // namespace coppice::engine
