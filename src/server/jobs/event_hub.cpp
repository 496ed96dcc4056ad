#include "server/jobs/event_hub.h"

#include <boost/asio/post.hpp>
#include <iterator>
#include <new>
#include <stdexcept>
#include <unordered_set>

namespace coppice::server {

engine::EventSink EventHub::sink() {
  return [shared = shared_](std::vector<engine::Event>&& events) {
    if (events.empty()) return;
    bool was_empty = false;
    {
      const std::lock_guard lock(shared->mutex);
      was_empty = shared->queue.empty();
      if (was_empty) {
        shared->queue = std::move(events);
      } else {
        shared->queue.insert(shared->queue.end(), std::make_move_iterator(events.begin()),
                             std::make_move_iterator(events.end()));
      }
    }
    if (was_empty) boost::asio::post(shared->io, [shared] { drain(*shared); });
  };
}

/// A lost event would leave its stream waiting for ever: no memory here ends the process.
void EventHub::drain(Shared& shared) try {
  std::vector<engine::Event> events;
  {
    const std::lock_guard lock(shared.mutex);
    events.swap(shared.queue);
  }
  for (engine::Event& event : events) {
    if (event.report && shared.on_report) shared.on_report(event.request, *event.report);
    const auto it = shared.listeners.find(event.request);
    if (it != shared.listeners.end()) it->second->on_event(std::move(event));
  }
} catch (const std::bad_alloc&) {
  throw std::runtime_error("out of memory while a step's events were handed out");
}

void EventHub::shutdown() {
  std::unordered_set<EventListener*> listeners;  // a listener may stand for several requests
  for (const auto& [id, listener] : shared_->listeners) listeners.insert(listener);
  for (EventListener* listener : listeners) listener->on_shutdown();
}

}  // namespace coppice::server
