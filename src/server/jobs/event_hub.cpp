#include "server/jobs/event_hub.h"

#include <boost/asio/post.hpp>
#include <iterator>
#include <new>
#include <stdexcept>
#include <unordered_set>
#include <utility>

namespace coppice::server {

engine::EventSink EventHub::sink() {
  return [shared = shared_](std::vector<engine::Event>&& events) {
    if (events.empty()) return;
    if (shared->push(std::move(events))) boost::asio::post(shared->io, [shared] { drain(*shared); });
  };
}

bool EventHub::Shared::push(std::vector<engine::Event>&& events) {
  const check::Lock lock(mutex);
  const bool was_empty = queue.empty();
  if (was_empty)
    queue = std::move(events);
  else
    queue.insert(queue.end(), std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
  return was_empty;
}

std::vector<engine::Event> EventHub::Shared::take() {
  const check::Lock lock(mutex);
  return std::exchange(queue, {});
}

/// A lost event would leave its stream waiting for ever: no memory here ends the process.
void EventHub::drain(Shared& shared) try {
  COPPICE_ASSERT(shared.io_thread.mine());
  for (engine::Event& event : shared.take()) {
    if (event.report && shared.on_report) shared.on_report(event.request, *event.report);
    const auto it = shared.listeners.find(event.request);
    if (it != shared.listeners.end()) it->second->on_event(std::move(event));
  }
} catch (const std::bad_alloc&) {
  throw std::runtime_error("out of memory while a step's events were handed out");
}

void EventHub::shutdown() {
  std::unordered_set<EventListener*> listeners;  // a listener may stand for several requests
  for (const auto& [id, listener] : own().listeners) listeners.insert(listener);
  for (EventListener* listener : listeners) listener->on_shutdown();
}

}  // namespace coppice::server
