#include "engine/mailbox.h"

#include <utility>

namespace coppice::engine {

void Mailbox::push(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  changed_.notify_one();
}

void Mailbox::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
}

bool Mailbox::drain(std::vector<Command>& out) {
  const std::lock_guard lock(mutex_);
  if (out.empty()) out.swap(commands_);
  return stopped_;
}

void Mailbox::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || !commands_.empty(); });
}

}  // namespace coppice::engine
