#include "engine/mailbox.h"

#include <cassert>
#include <utility>

namespace coppice::engine {

void Mailbox::push(Request&& request) {
  const RequestId id = request.id;
  const std::size_t n = weight(request);
  OpenRequests opened;
  OpenRequest& open = opened.try_emplace(id, std::move(request)).first->second;
  open.weight = n;
  std::set<RequestId> place{id};
  Request too_much;  // goes without the lock
  {
    const std::lock_guard lock(mutex_);
    auto& node = commands_.requests.emplace_back();  // nothing throws from here on
    if (n <= max_weight_ - weight_) {
      open.charge = n;
      weight_ += n;
    } else {
      too_much = std::exchange(open.request, {.id = id, .submitted = open.request.submitted});
      open.sequences.clear();
    }
    node = opened.extract(id);
    open_.merge(place);
    ++submitted_;
  }
  changed_.notify_one();
}

void Mailbox::cancel(RequestId id) noexcept {
  const std::lock_guard lock(mutex_);
  commands_.cancelled.insert(open_.extract(id));
  changed_.notify_one();
}

void Mailbox::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_one();
}

void Mailbox::give_back(const OpenRequest& ended) {
  const std::lock_guard lock(mutex_);
  assert(ended.charge <= weight_);
  weight_ -= ended.charge;
  open_.erase(ended.request.id);
}

bool Mailbox::drain(Commands& out) {
  assert(out.empty());
  const std::lock_guard lock(mutex_);
  std::swap(out, commands_);
  return stopped_;
}

void Mailbox::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || !commands_.empty(); });
}

}  // namespace coppice::engine
