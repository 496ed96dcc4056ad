#include "engine/mailbox.h"

#include <cassert>
#include <utility>

namespace coppice::engine {

void Mailbox::push(Request request) {
  const std::size_t n = request.prompt.size();
  {
    const std::lock_guard lock(mutex_);
    const bool too_much = n > max_prompt_tokens_ - prompt_tokens_;
    if (too_much) {
      commands_.emplace_back(Declined{.id = request.id, .prompt_tokens = static_cast<std::int32_t>(n)});
    } else {
      commands_.emplace_back(std::move(request));
      prompt_tokens_ += n;
    }
    ++submitted_;
  }
  changed_.notify_one();
}

void Mailbox::push(Cancel cancel) {
  {
    const std::lock_guard lock(mutex_);
    commands_.emplace_back(cancel);
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

void Mailbox::give_back(std::size_t prompt_tokens) {
  if (prompt_tokens == 0) return;
  const std::lock_guard lock(mutex_);
  assert(prompt_tokens <= prompt_tokens_);
  prompt_tokens_ -= prompt_tokens;
}

bool Mailbox::drain(std::vector<Command>& out) {
  assert(out.empty());
  const std::lock_guard lock(mutex_);
  out.swap(commands_);
  return stopped_;
}

void Mailbox::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || !commands_.empty(); });
}

}  // namespace coppice::engine
