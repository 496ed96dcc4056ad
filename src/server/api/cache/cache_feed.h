// CacheFeed: what those see who watch the cache: it asks the engine, and makes one frame for all pages of a namespace.
//
// Belongs to the io thread. However many pages are open, the engine is asked at most once a kTick for each namespace, and not
// at all while nothing happens.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>

#include "engine/view.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/model.h"

namespace coppice::server {

class CacheFeed final : public EventListener {
 public:
  static constexpr std::chrono::milliseconds kTick{250};

  explicit CacheFeed(EventHub& hub) : hub_(hub) {}
  ~CacheFeed();
  CacheFeed(const CacheFeed&) = delete;
  CacheFeed& operator=(const CacheFeed&) = delete;

  /// Null: the engine gave no answer, as the server ends, or as too many ask. Between two steps it answers at once.
  boost::asio::awaitable<std::shared_ptr<const engine::View>> ask(Model& model, engine::Question question);

  /// A namespace's frame, shared by its pages; it goes with the last of them.
  struct Frame {
    std::shared_ptr<const std::string> text;  ///< null: none yet. Another object whenever something has changed
    std::chrono::steady_clock::time_point made;
    std::int64_t stamp = -1;  ///< of the engine's figures: the same if nothing has happened
    bool making = false;
  };
  using MakeText = std::function<std::string(const engine::View&, const engine::Snapshot&)>;
  /// Nodes, depth and tokens of a node's text that it shows; the namespace's salt.
  using FrameKey = std::tuple<int, int, int, std::string>;
  std::shared_ptr<Frame> frame(const FrameKey& key);
  /// Brings a frame up to date, unless it is younger than a tick or somebody else does it just now.
  boost::asio::awaitable<void> refresh(std::shared_ptr<Frame> frame, Model& model, engine::Question question,
                                       const MakeText& make);

  void on_event(engine::Event&& event) override;
  void on_shutdown() override;

 private:
  struct Waiting {
    boost::asio::steady_timer news;
    std::shared_ptr<const engine::View> view;
  };
  EventHub& hub_;
  std::unordered_map<engine::RequestId, Waiting*> waiting_;
  std::map<FrameKey, std::weak_ptr<Frame>> frames_;
  bool ended_ = false;
};

}  // namespace coppice::server
