#include "port/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace coppice::port {

namespace {

sigset_t set_of(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : numbers) sigaddset(&set, number);
  return set;
}

}  // namespace

void hold_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const sigset_t held = set_of({SIGINT, SIGTERM, SIGHUP});
  pthread_sigmask(SIG_BLOCK, &held, nullptr);
}

namespace {

const char* lost_pages = "";

extern "C" void on_lost_pages(int) {
  end_for_lost_pages();
}

}  // namespace

/// Only what a handler may call.
void end_for_lost_pages() {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, lost_pages, std::strlen(lost_pages));
  _exit(EXIT_FAILURE);
}

void explain_lost_pages(const char* sentence) {
  lost_pages = sentence;
  std::signal(SIGBUS, on_lost_pages);
}

void release_hangup() {
  const sigset_t hangup = set_of({SIGHUP});
  pthread_sigmask(SIG_UNBLOCK, &hangup, nullptr);
}

struct SignalThread::Impl {
  std::function<void(int)> on_signal;
  std::atomic<bool> ending = false;
  std::thread thread;

  void run() {
    const sigset_t held = set_of({SIGINT, SIGTERM, SIGHUP});
    int number = 0;
    while (sigwait(&held, &number) == 0 && !ending) on_signal(number);
  }
};

SignalThread::SignalThread(std::function<void(int)> on_signal) : impl_(std::make_unique<Impl>()) {
  impl_->on_signal = std::move(on_signal);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

SignalThread::~SignalThread() {
  impl_->ending = true;
  pthread_kill(impl_->thread.native_handle(), SIGTERM);  // wakes it; the flag says that this is no signal of others
  impl_->thread.join();
}

}  // namespace coppice::port
