// Signals, taken by a thread of their own: no handler interrupts anybody, and a thread that hangs cannot keep the
// others from ending.
#pragma once

#include <functional>
#include <memory>

namespace coppice::port {

/// Keeps SIGINT, SIGTERM and SIGHUP waiting for a SignalThread, in this thread and in those that it starts from now on.
/// SIGPIPE and SIGXFSZ are ignored: the write that fails says it. Call it before there are other threads.
void hold_signals();

/// A file that was mapped into memory and is shorter now, or can't be read (SIGBUS), ends the process with status 1 and
/// one line on standard error, in place of a core. `sentence`: what it says, with a newline; it lives as long as the
/// process.
void explain_lost_pages(const char* sentence);
/// The same end, for who sees such a file before its pages are touched.
[[noreturn]] void end_for_lost_pages();

/// SIGHUP ends the process again, as it does by default. REQUIRES: hold_signals(), and still no other thread.
void release_hangup();

/// Calls `on_signal` with each held signal's number, on a thread of its own, one after the other, until it is
/// destroyed. REQUIRES: hold_signals(). Throws std::system_error when there can be no thread.
class SignalThread {
 public:
  explicit SignalThread(std::function<void(int number)> on_signal);
  ~SignalThread();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::port
