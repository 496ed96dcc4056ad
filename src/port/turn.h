// A thread that works for many, a turn for each, and works that take long: between two of its steps such a work lets
// others have theirs.
//
// Thread safety: each function is about the thread that calls it. None throws.
#pragma once

namespace coppice::port {

/// What gives a thread its turns. Belongs to that thread.
class Turn {
 public:
  virtual ~Turn() = default;
  /// May come back later: others have their turns meanwhile, on other threads.
  virtual void between_steps() noexcept = 0;
  /// Nobody waits for the work any more.
  virtual bool unwanted() const noexcept { return false; }
};

/// Of this thread, until the next call; null: nobody waits for it.
void set_turn(Turn* turn) noexcept;

/// Called by a work wherever it may pause, every few microseconds or milliseconds. It holds no lock then.
void between_steps() noexcept;

/// What a work makes that can't pause, but end early: nobody wants it any more.
bool unwanted() noexcept;

}  // namespace coppice::port
