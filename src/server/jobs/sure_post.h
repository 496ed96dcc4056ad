// SurePost: hands a function to an io_context from another thread, and can't fail for want of memory: what asio needs
// for it is here, from the start. Whoever waits for that function would wait for ever otherwise.
//
// One function at a time: the next one when the last has begun. Lives until the last one has begun, or the io_context
// is gone.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/execution.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/require.hpp>
#include <cstddef>
#include <utility>

#include "check/assert.h"

namespace coppice::server {

class SurePost {
 public:
  SurePost() = default;
  SurePost(const SurePost&) = delete;
  SurePost& operator=(const SurePost&) = delete;

  /// `f`, which takes no memory to be moved, runs on a thread of `io`, after this call or during it.
  template <class F>
  void operator()(boost::asio::io_context& io, F f) {
    namespace execution = boost::asio::execution;
    const auto here = boost::asio::require(io.get_executor(), execution::blocking.never,
                                           execution::allocator(Allocator<void>(*this)));
    here.execute(std::move(f));
  }

 private:
  static constexpr std::size_t kBytes = 128;

  /// As asio wants them: of this one's bytes.
  template <class T>
  class Allocator {
   public:
    using value_type = T;
    explicit Allocator(SurePost& post) : post_(&post) {}
    template <class U>
    explicit(false) Allocator(const Allocator<U>& other) : post_(other.post_) {}

    T* allocate(std::size_t n) const {
      static_assert(sizeof(T) <= kBytes && alignof(T) <= alignof(std::max_align_t));
      COPPICE_ASSERT(n == 1 && !post_->taken_.exchange(true));
      return reinterpret_cast<T*>(post_->bytes_.data());
    }
    void deallocate(T*, std::size_t) const { post_->taken_ = false; }
    bool operator==(const Allocator&) const = default;

   private:
    template <class U>
    friend class Allocator;
    SurePost* post_;
  };

  alignas(std::max_align_t) std::array<std::byte, kBytes> bytes_;
  std::atomic<bool> taken_ = false;
};

}  // namespace coppice::server
