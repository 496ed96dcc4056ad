// EngineCall: one order to the engine about pinned prefixes, and its answer.
//
// Belongs to the io thread. The answer comes after the step in hand, which may take a second.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>

#include "check/thread_role.h"
#include "engine/pinned_prefix.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/model.h"

namespace coppice::server {

class EngineCall final : public EventListener {
 public:
  EngineCall(EventHub& hub, Model& model, const boost::asio::any_io_executor& executor);
  ~EngineCall();
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;

  /// Called once. Throws RequestError if too many wait for the engine, if its memory is short, or if the server ends before there
  /// is an answer.
  boost::asio::awaitable<engine::PrefixAnswer> ask(engine::PrefixCommand command);

  void on_event(engine::Event&& event) override;
  void on_no_memory(engine::RequestId id) noexcept override;
  void on_shutdown() override;

 private:
  check::ThreadRole io_thread_;
  EventHub& hub_;
  Model& model_;
  boost::asio::steady_timer news_;  ///< cancelled to wake ask()
  engine::RequestId id_;
  std::shared_ptr<const engine::PrefixAnswer> answer_;
  bool ended_ = false;
};

}  // namespace coppice::server
