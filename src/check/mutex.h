// Mutex, Lock, Condition: the standard's, and the compiler checks (-Wthread-safety, an error) that what
// COPPICE_GUARDED_BY names a mutex for is touched under its lock only. The standard library's own types carry no such
// marks.
//
// Any thread. What throws is what the standard's types throw (std::system_error).
//
// A predicate given to a wait would be a function of its own, which the compiler thinks to run without the lock:
// callers loop.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

/// Of a member: it is read and written only under a Lock of this mutex.
#define COPPICE_GUARDED_BY(mutex) __attribute__((guarded_by(mutex)))
/// Of a function: whoever calls it has the lock.
#define COPPICE_REQUIRES(mutex) __attribute__((requires_capability(mutex)))

namespace coppice::check {

/// Only a Lock locks it. Not recursive.
class __attribute__((capability("mutex"))) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class Lock;
  std::mutex mutex_;
};

/// Holds a mutex from its beginning until its end, or until unlock(). unlock() REQUIRES that it holds it, lock() that
/// it doesn't. A Lock belongs to the thread that made it.
class __attribute__((scoped_lockable)) Lock {
 public:
  explicit Lock(Mutex& mutex) __attribute__((acquire_capability(mutex))) : lock_(mutex.mutex_) {}
  ~Lock() __attribute__((release_capability())) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void unlock() __attribute__((release_capability())) { lock_.unlock(); }
  void lock() __attribute__((acquire_capability())) { lock_.lock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

/// std::condition_variable. Who waits holds the mutex that guards what is waited for; who notifies need not hold it.
class Condition {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }
  /// Gives the lock up while it sleeps, and has it again when it returns, which may be for no reason: the caller looks
  /// at what it waits for, in a loop. REQUIRES: the lock holds its mutex.
  void wait(Lock& lock) { condition_.wait(lock.lock_); }
  /// The same, until a time at the latest. False: that has come.
  template <class Clock, class Duration>
  bool wait_until(Lock& lock, const std::chrono::time_point<Clock, Duration>& until) {
    return condition_.wait_until(lock.lock_, until) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace coppice::check
