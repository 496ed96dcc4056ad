// Ask: one question to the engine and its answer, which comes after the step in hand: that may take a second.
//
// Belongs to the io thread; the engine answers on its own. Whoever destroys it asks no longer, and the engine drops the
// question.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <utility>

#include "check/assert.h"
#include "check/thread_role.h"
#include "engine/reply.h"
#include "server/jobs/sure_post.h"

namespace coppice::server {

template <class T>
class Ask {
 public:
  explicit Ask(boost::asio::io_context& io) : told_(io, boost::asio::steady_timer::time_point::max()) {
    waiting_ = std::make_shared<Waiting>(io, *this);
  }
  ~Ask() {
    COPPICE_ASSERT(io_thread_.mine());
    waiting_->ask = nullptr;
    waiting_->waiting = false;
  }
  Ask(const Ask&) = delete;
  Ask& operator=(const Ask&) = delete;

  /// For the engine. Called once.
  engine::Reply<T> reply() {
    COPPICE_ASSERT(io_thread_.mine());
    return engine::Reply<T>(waiting_);
  }
  /// Null: there is none, as the server ends or its memory is short. Any number of coroutines may wait.
  boost::asio::awaitable<std::shared_ptr<const T>> answer() {
    COPPICE_ASSERT(io_thread_.mine());
    while (!done()) {
      boost::system::error_code ignored;
      co_await told_.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, ignored));
    }
    co_return waiting_->answer;
  }
  bool done() const { return done_; }

 private:
  /// Lives as long as one of both sides.
  struct Waiting final : engine::Asker<T>, std::enable_shared_from_this<Waiting> {
    Waiting(boost::asio::io_context& context, Ask& owner) : io(context), ask(&owner) {}
    void told(std::shared_ptr<const T> news) noexcept override {
      if (!waiting) return;
      answer = std::move(news);
      post(io, [self = this->shared_from_this()] {
        if (self->ask != nullptr) self->ask->wake();
      });
    }
    bool waits() const noexcept override { return waiting; }

    boost::asio::io_context& io;  ///< there as long as somebody waits
    SurePost post;
    std::atomic<bool> waiting = true;
    std::shared_ptr<const T> answer;  ///< the io thread's as soon as it is posted
    Ask* ask;                         ///< the io thread's; null: it is gone
  };
  void wake() {
    done_ = true;
    told_.cancel();
  }

  check::ThreadRole io_thread_;
  boost::asio::steady_timer told_;  ///< cancelled to wake answer()
  std::shared_ptr<Waiting> waiting_;
  bool done_ = false;
};

}  // namespace coppice::server
