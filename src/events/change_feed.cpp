#include "events/change_feed.h"

#include <exception>
#include <utility>

namespace coppice::events {

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
  const check::Lock lock(mutex_);
  told_ = 0;
  if (wanted_ && wake_) wake_();  // it has waited for this
  return std::exchange(changes_, {});
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

std::uint32_t ChangeFeed::place_of(const kv::Namespace& ns) {
  if (changes_.spaces.empty() || changes_.spaces.back() != ns) changes_.spaces.push_back(ns);
  return static_cast<std::uint32_t>(changes_.spaces.size() - 1);
}

void ChangeFeed::entered(const kv::TreeBlock& block) noexcept {
  add([&](Changes& to) __attribute__((no_thread_safety_analysis)) {
    const auto spans = block.text.spans();
    const auto bits = block.text.bits();
    const std::uint32_t space = place_of(*block.ns);
    to.symbols.insert(to.symbols.end(), bits.begin(), bits.end());
    to.spans.insert(to.spans.end(), spans.begin(), spans.end());
    to.list.push_back({.entered = true,
                       .is_first = block.is_first,
                       .space = space,
                       .n_spans = static_cast<std::uint32_t>(spans.size()),
                       .digest = block.digest,
                       .parent = block.parent});
  });
}

void ChangeFeed::left(const kv::Digest& digest, const kv::Namespace& ns) noexcept {
  add([&](Changes& to)
          __attribute__((no_thread_safety_analysis)) { to.list.push_back({.space = place_of(ns), .digest = digest}); });
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
