#include "events/change_feed.h"

#include <exception>
#include <utility>

namespace coppice::events {

void ChangeFeed::on_change(std::function<void()> changed) {
  stored_.on_change(changed);
  changed_ = std::move(changed);
}

void ChangeFeed::on_want(std::function<void()> wake) {
  const check::Lock lock(mutex_);
  wake_ = std::move(wake);
}

void ChangeFeed::want_all() {
  check::Lock lock(mutex_);
  wanted_ = true;
  if (wake_) wake_();
}

Changes ChangeFeed::take() {
  Changes changes;
  {
    const check::Lock lock(mutex_);
    told_ = 0;
    if (wanted_ && wake_) wake_();  // it has waited for this
    changes = std::exchange(changes_, {});
  }
  stored_.add_to(changes);
  return changes;
}

// Whatever fails, fails for want of memory.
template <class Add>
void ChangeFeed::add(const Add& add) noexcept {
  bool was_empty = false;
  {
    const check::Lock lock(mutex_);
    if (lost_) return;
    was_empty = changes_.empty();
    try {
      if (!telling_ && changes_.list.size() >= told_ + most_) {
        lose();
      } else {
        add(changes_);
      }
    } catch (const std::exception&) {
      lose();
    }
    if (telling_ || lost_) return;
  }
  if (was_empty && changed_) changed_();
}

void ChangeFeed::lose() noexcept {
  changes_ = {};
  told_ = 0;
  lost_ = wanted_ = true;
}

void ChangeFeed::entered(const kv::TreeBlock& block) noexcept {
  add([&](Changes& to) { to.add_entered(Medium::kPool, block); });
}

void ChangeFeed::left(const kv::Digest& digest, const kv::Namespace& ns) noexcept {
  add([&](Changes& to) { to.add_left(Medium::kPool, digest, ns); });
}

// Whoever has not taken what was told last would only get the same again.
bool ChangeFeed::wants_all() const noexcept {
  const check::Lock lock(mutex_);
  return wanted_ && changes_.empty();
}

void ChangeFeed::begin_all() noexcept {
  const check::Lock lock(mutex_);
  changes_ = {};
  changes_.anew = true;
  told_ = 0;
  telling_ = true;
  lost_ = wanted_ = false;
}

void ChangeFeed::end_all() noexcept {
  {
    const check::Lock lock(mutex_);
    telling_ = false;
    told_ = changes_.list.size();
    if (lost_) return;
  }
  if (changed_) changed_();
}

}  // namespace coppice::events
