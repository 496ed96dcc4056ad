// Fibers: threads of which one runs at a time, and gives way only where it says so: who goes on then is the test's choice, so a run can be
// repeated to the last step.
#pragma once

#include <functional>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "support/dice.h"

namespace coppice::test {

class Fibers {
 public:
  Fibers() = default;
  ~Fibers();  ///< REQUIRES: all have ended
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  /// Begins with one of the next steps.
  void start(std::function<void()> body);
  /// One of them, drawn by the dice, goes on until it gives way or ends. False: all have ended. Ends the program if it doesn't come back: it waits
  /// for a lock that another one holds, while that has given way.
  bool step(Dice& dice);
  /// Of a fiber: others may run. Elsewhere: nothing.
  void give_way();

 private:
  struct Fiber {
    std::function<void()> body;
    std::binary_semaphore go{0};
    bool ended = false;
    std::thread thread;
  };

  std::vector<std::unique_ptr<Fiber> > fibers_;
  Fiber* running_ = nullptr;
  std::binary_semaphore back_{0};
};

}  // namespace coppice::test
