// ThreadRole: a member of what belongs to one thread. Its entries assert mine(): the first thread that comes has the
// role, and another one breaks the contract. The compiler could check that only as far as no coroutine and no callback
// lies between.
#pragma once

#include <atomic>
#include <thread>

namespace coppice::check {

/// Thread safety: any thread may ask. What is moved has no owner: it may be made by one thread and belong to another.
class ThreadRole {
 public:
  ThreadRole() = default;
  ThreadRole(ThreadRole&&) noexcept {}
  ThreadRole& operator=(ThreadRole&&) noexcept { return *this; }

  /// Whether the calling thread has the role; it takes it if nobody has.
  bool mine() const noexcept {
    const std::thread::id me = std::this_thread::get_id();
    std::thread::id nobody{};
    return owner_.load(std::memory_order_relaxed) == me || owner_.compare_exchange_strong(nobody, me);
  }
  /// Whoever comes next takes it: what its thread is through with may be looked at by another.
  void give_up() noexcept { owner_ = std::thread::id(); }

 private:
  mutable std::atomic<std::thread::id> owner_{};
};

}  // namespace coppice::check
