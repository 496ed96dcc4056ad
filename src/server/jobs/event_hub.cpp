#include "server/jobs/event_hub.h"

#include <chrono>
#include <iterator>
#include <new>
#include <thread>
#include <unordered_set>
#include <utility>

namespace coppice::server {

engine::EventSink EventHub::sink() {
  return [shared = shared_](std::vector<engine::Event>&& events) {
    if (events.empty()) return;
    if (shared->push(std::move(events))) shared->post(shared->io, [shared] { drain(*shared); });
  };
}

/// Where memory for a longer queue is lacking, it waits: the io thread takes the queue soon, and into an empty one
/// events go without.
bool EventHub::Shared::push(std::vector<engine::Event>&& events) {
  constexpr std::chrono::milliseconds kSoon{1};
  while (true) {
    try {
      const check::Lock lock(mutex);
      if (queue.empty()) {
        queue = std::move(events);
        return true;
      }
      queue.reserve(queue.size() + events.size());
      queue.insert(queue.end(), std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
      return false;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(kSoon);
    }
  }
}

std::vector<engine::Event> EventHub::Shared::take() {
  const check::Lock lock(mutex);
  return std::exchange(queue, {});
}

/// A lost event would leave its stream waiting for ever: whoever has no memory for one is told so.
void EventHub::drain(Shared& shared) {
  COPPICE_ASSERT(shared.io_thread.mine());
  for (engine::Event& event : shared.take()) {
    const engine::RequestId id = event.request;
    try {
      if (event.report && shared.on_report) shared.on_report(id, *event.report);
    } catch (const std::bad_alloc&) {  // a line of the log
    }
    const auto it = shared.listeners.find(id);
    if (it == shared.listeners.end()) continue;
    EventListener& listener = *it->second;
    try {
      listener.on_event(std::move(event));
    } catch (const std::bad_alloc&) {
      listener.on_no_memory(id);
    }
  }
}

void EventHub::shutdown() {
  std::unordered_set<EventListener*> listeners;  // a listener may stand for several requests
  for (const auto& [id, listener] : own().listeners) listeners.insert(listener);
  for (EventListener* listener : listeners) listener->on_shutdown();
}

}  // namespace coppice::server
