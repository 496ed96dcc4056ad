// Fibers: threads of which one runs at a time, and gives way only where it says so: who goes on then is the test's
// choice, so a run can be repeated to the last step.
#pragma once

#include <semaphore.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "support/dice.h"

namespace coppice::test {

class Fibers {
 public:
  /// Keeps the calling thread, and so the fibers, on one processor: a handover to another one takes longer than most
  /// steps.
  Fibers();
  ~Fibers();  ///< REQUIRES: all have ended
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  /// Begins with one of the next steps.
  void start(std::function<void()> body);
  /// One of them, drawn by the dice, goes on until it gives way or ends. False: all have ended. Ends the program if it
  /// doesn't come back: it waits for a lock that another one holds, while that has given way.
  bool step(Dice& dice);
  /// Of a fiber: others may run. Elsewhere: nothing.
  void give_way();

 private:
  /// POSIX's, since libstdc++'s looks many times and gives its processor away between, which beside other programs
  /// takes most of the time.
  class Semaphore {
   public:
    Semaphore();
    ~Semaphore() { sem_destroy(&semaphore_); }
    Semaphore(const Semaphore&) = delete;
    Semaphore& operator=(const Semaphore&) = delete;

    void release();
    void acquire();
    bool acquire_within(int seconds);

   private:
    sem_t semaphore_;
  };

  struct Fiber {
    std::function<void()> body;
    Semaphore go;
    bool ended = false;
    std::thread thread;
  };

  std::vector<std::unique_ptr<Fiber> > fibers_;
  Fiber* running_ = nullptr;
  Semaphore back_;
};

}  // namespace coppice::test
