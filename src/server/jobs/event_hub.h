// EventHub: takes each step's events from the engine's thread to the jobs that wait for them.
//
// sink() is for the engine's thread; everything else belongs to the io thread. The engine pays one lock and at
// most one post per step, however many streams are open: if the io thread is behind, steps pile up in one
// queue and are handed out together.
//
// Invariants
//   1. A drain is posted iff `queue` became non-empty since the last drain.
//   2. No event is lost for want of memory without its listener being told.
//   3. Events of requests that nobody listens to any more are dropped. on_report() hears their cache reports
//      nevertheless.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check/assert.h"
#include "check/mutex.h"
#include "check/thread_role.h"
#include "engine/request.h"
#include "server/jobs/sure_post.h"

namespace coppice::server {

/// Hears a request's events, on the io thread.
class EventListener {
 public:
  virtual void on_event(engine::Event&& event) = 0;
  /// on_event() threw std::bad_alloc, and the event is lost.
  virtual void on_no_memory(engine::RequestId id) noexcept = 0;
  /// The server ends: whatever is not done will be cancelled.
  virtual void on_shutdown() = 0;

 protected:
  ~EventListener() = default;
};

class EventHub {
 public:
  explicit EventHub(boost::asio::io_context& io) : shared_(std::make_shared<Shared>(io)) {}

  /// May outlive the hub; must not be called when the io_context is gone.
  engine::EventSink sink();

  boost::asio::io_context& io() const { return shared_->io; }  ///< any thread
  void add(engine::RequestId id, EventListener& listener) { own().listeners.emplace(id, &listener); }
  void remove(engine::RequestId id) { own().listeners.erase(id); }
  std::size_t open() { return own().listeners.size(); }

  /// Called with each report, before the request's listener has it.
  using ReportListener = std::function<void(engine::RequestId, const engine::CacheReport&)>;
  void on_report(ReportListener listener) { own().on_report = std::move(listener); }

  /// Calls every listener's on_shutdown() once.
  void shutdown();

 private:
  struct Shared {
    explicit Shared(boost::asio::io_context& context) : io(context) {}
    /// False: a drain is on its way.
    bool push(std::vector<engine::Event>&& events);
    std::vector<engine::Event> take();

    boost::asio::io_context& io;
    SurePost post;  ///< of a drain
    check::Mutex mutex;
    std::vector<engine::Event> queue COPPICE_GUARDED_BY(mutex);
    check::ThreadRole io_thread;  ///< the rest is its own
    std::unordered_map<engine::RequestId, EventListener*> listeners;
    ReportListener on_report;
  };
  static void drain(Shared& shared);
  /// What only the io thread may touch.
  Shared& own() {
    COPPICE_ASSERT(shared_->io_thread.mine());
    return *shared_;
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace coppice::server
