#include "server/event_hub.h"

#include <boost/asio/post.hpp>
#include <iterator>
#include <unordered_set>

#include "server/insist.h"
#include "server/log_failure.h"

namespace coppice::server {

engine::EventSink EventHub::sink() {
  return [shared = shared_](std::vector<engine::Event>&& events) {
    if (events.empty()) return;
    bool was_empty = false;
    insist([&] {
      const std::lock_guard lock(shared->mutex);
      was_empty = shared->queue.empty();
      if (was_empty) {
        shared->queue = std::move(events);
      } else {
        const std::size_t size = shared->queue.size() + events.size();
        if (size > shared->queue.capacity()) shared->queue.reserve(2 * size);  // so that insert() cannot throw
        shared->queue.insert(shared->queue.end(), std::make_move_iterator(events.begin()),
                             std::make_move_iterator(events.end()));
      }
    });
    if (was_empty) insist([&] { boost::asio::post(shared->io, [shared] { drain(*shared); }); });
  };
}

void EventHub::tell_report(const Shared& shared, const engine::Event& event) {
  try {
    shared.on_report(event.request, *event.report);
  } catch (const std::exception& e) {
    log_failure("a cache report is lost", e);
  }
}

void EventHub::drain(Shared& shared) {
  std::vector<engine::Event> events;
  {
    const std::lock_guard lock(shared.mutex);
    events.swap(shared.queue);
  }
  for (engine::Event& event : events) {
    if (event.report && shared.on_report) tell_report(shared, event);
    const auto it = shared.listeners.find(event.request);
    if (it == shared.listeners.end()) continue;
    EventListener* const listener = it->second;
    try {
      listener->on_event(std::move(event));
    } catch (const std::exception& e) {
      log_failure("an event is lost", e);
      listener->on_lost();
    }
  }
}

void EventHub::shutdown() {
  std::unordered_set<EventListener*> listeners;  // a listener may stand for several requests
  for (const auto& [id, listener] : shared_->listeners) listeners.insert(listener);
  for (EventListener* listener : listeners) listener->on_shutdown();
}

}  // namespace coppice::server
