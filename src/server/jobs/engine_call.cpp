#include "server/jobs/engine_call.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "check/assert.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace asio = boost::asio;

EngineCall::EngineCall(EventHub& hub, Model& model, const asio::any_io_executor& executor)
    : hub_(hub), model_(model), news_(executor, asio::steady_timer::time_point::max()), id_(model.next_id()) {
  hub_.add(id_, *this);
}

EngineCall::~EngineCall() {
  hub_.remove(id_);
  if (!answer_) model_.cancel(id_);
}

asio::awaitable<engine::PrefixAnswer> EngineCall::ask(engine::PrefixCommand command) {
  COPPICE_ASSERT(io_thread_.mine());
  command.id = id_;
  if (!model_.ask(std::move(command)))
    throw RequestError::queue_full("Too many requests about the cache wait for the engine.");
  while (!answer_ && !ended_) {
    boost::system::error_code ignored;
    co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (!answer_) throw RequestError::shutting_down();
  if (answer_->failed) throw RequestError::unavailable("The server is out of memory.");
  co_return *answer_;
}

void EngineCall::on_event(engine::Event&& event) {
  COPPICE_ASSERT(io_thread_.mine());
  answer_ = std::move(event.prefixes);
  news_.cancel();
}

void EngineCall::on_no_memory(engine::RequestId) noexcept {
  on_shutdown();
}

void EngineCall::on_shutdown() {
  COPPICE_ASSERT(io_thread_.mine());
  ended_ = true;
  news_.cancel();
}

}  // namespace coppice::server
