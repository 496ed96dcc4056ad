#include "server/jobs/worker_turns.h"

#include <atomic>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <utility>

namespace coppice::server {

namespace asio = boost::asio;

/// No co_spawn onto the worker: in Boost 1.81 it hands a cancellation to the other thread by a pointer that may dangle by then.
asio::awaitable<void> on_worker(WorkQueue& worker, std::size_t bytes, std::function<bool()> step) {
  std::exception_ptr failure;
  std::atomic<bool> cancelled = false;
  const auto turn = [&] {
    try {
      if (cancelled) throw boost::system::system_error(asio::error::operation_aborted);
      return step();
    } catch (...) {
      failure = std::current_exception();
      return true;
    }
  };
  const auto io = asio::make_work_guard(co_await asio::this_coro::executor);
  const auto begin = [&](auto resume) {
    if (auto slot = asio::get_associated_cancellation_slot(resume); slot.is_connected())
      slot.assign([&cancelled](asio::cancellation_type) { cancelled = true; });  // cleared when the caller is resumed
    worker.push(bytes, [&turn, executor = io.get_executor(), resume = std::move(resume)]() mutable {
      const bool done = turn();
      if (done) asio::post(executor, std::move(resume));
      return done;
    });
  };
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(begin, asio::use_awaitable);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace coppice::server
