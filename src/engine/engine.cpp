#include "engine/engine.h"

#include <atomic>
#include <utility>

#include "engine/mailbox.h"
#include "engine/step_loop.h"

namespace coppice::engine {

struct Engine::Impl {
  Impl(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink)
      : mailbox(config.max_weight), loop(mailbox, std::move(cache), executor, std::move(config), std::move(sink)) {}

  std::atomic<RequestId> last_id = 0;
  Mailbox mailbox;
  StepLoop loop;
};

Engine::Engine(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink)
    : impl_(std::make_unique<Impl>(std::move(cache), executor, std::move(config), std::move(sink))) {}

Engine::~Engine() = default;

RequestId Engine::next_id() {
  return ++impl_->last_id;
}

void Engine::submit(Request request) {
  request.submitted = impl_->loop.config().now();
  impl_->mailbox.push(std::move(request));
}

void Engine::cancel(RequestId id) noexcept {
  impl_->mailbox.cancel(id);
}

bool Engine::ask(Question question, Reply<View> reply) {
  return impl_->mailbox.ask(std::move(question), std::move(reply));
}

bool Engine::ask(PrefixCommand order, Reply<PrefixAnswer> reply) {
  return impl_->mailbox.ask(std::move(order), std::move(reply));
}

Snapshot Engine::snapshot() const {
  Snapshot snapshot = impl_->loop.snapshot();
  snapshot.requests_submitted = impl_->mailbox.submitted();  // after the ends: none is counted without its beginning
  return snapshot;
}

void Engine::wake() noexcept {
  impl_->mailbox.wake();
}

void Engine::attach(TierConfig tiers) {
  impl_->mailbox.attach(std::move(tiers));
}

void Engine::settle(Clock::time_point until) {
  impl_->mailbox.settle(until);
}

void Engine::stop() {
  impl_->mailbox.stop();
}

bool Engine::ended() const {
  return impl_->loop.stopped();
}

void Engine::run() {
  while (!ended()) {
    if (!step() && !ended()) impl_->mailbox.wait(impl_->loop.waits_until());
  }
}

bool Engine::step() {
  return impl_->loop.step();
}

const kv::Cache& Engine::cache() const {
  return impl_->loop.cache();
}

}  // namespace coppice::engine
