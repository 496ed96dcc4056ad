#include "server/api/cache/cache_feed.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

namespace coppice::server {

namespace asio = boost::asio;

namespace {

/// A step may take seconds. Longer than this only one that hangs.
constexpr std::chrono::seconds kLongestStep{60};

/// Grows with everything that a View may show.
std::int64_t stamp_of(const engine::Snapshot& s) {
  return s.steps + s.requests_submitted + s.admissions + s.requests_finished + s.requests_cancelled +
         s.requests_refused + s.requests_failed + s.requests_timed_out + s.pin_changes + s.cache.evictions;
}

}  // namespace

CacheFeed::~CacheFeed() {
  for (const auto& [id, waiting] : waiting_) hub_.remove(id);
}

asio::awaitable<std::shared_ptr<const engine::View>> CacheFeed::ask(Model& model, engine::Question question) {
  if (ended_) co_return nullptr;
  Waiting waiting{.news = asio::steady_timer(co_await asio::this_coro::executor), .view = nullptr};
  const engine::RequestId id = question.id = model.next_id();
  struct Place {
    CacheFeed& feed;
    Model& model;
    engine::RequestId id;
    ~Place() {
      feed.hub_.remove(id);
      model.cancel(id);
      feed.waiting_.erase(id);
    }
  } const place{*this, model, id};
  hub_.add(id, *this);
  waiting_.emplace(id, &waiting);
  if (!model.ask(std::move(question))) co_return nullptr;
  waiting.news.expires_after(kLongestStep);
  boost::system::error_code ignored;
  co_await waiting.news.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_return waiting.view;
}

std::shared_ptr<CacheFeed::Frame> CacheFeed::frame(const FrameKey& key) {
  std::erase_if(frames_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Frame>& known = frames_[key];
  std::shared_ptr<Frame> frame = known.lock();
  if (!frame) known = frame = std::make_shared<Frame>();
  return frame;
}

asio::awaitable<void> CacheFeed::refresh(std::shared_ptr<Frame> frame, Model& model, engine::Question question,
                                         const MakeText& make) {
  const auto now = std::chrono::steady_clock::now();
  const engine::Snapshot before = model.snapshot();
  const bool fresh = frame->text && (now - frame->made < kTick / 2 || frame->stamp == stamp_of(before));
  if (fresh || frame->making) co_return;
  struct Making {
    bool& making;
    ~Making() { making = false; }
  } const mark{frame->making = true};
  const auto view = co_await ask(model, std::move(question));
  if (!view) co_return;
  frame->text = std::make_shared<const std::string>(make(*view, model.snapshot()));
  frame->made = std::chrono::steady_clock::now();
  frame->stamp = stamp_of(before);
}

void CacheFeed::on_event(engine::Event&& event) {
  const auto found = waiting_.find(event.request);
  if (found == waiting_.end()) return;
  found->second->view = std::move(event.view);
  found->second->news.cancel();
}

void CacheFeed::on_shutdown() {
  ended_ = true;
  for (const auto& [id, waiting] : waiting_) waiting->news.cancel();
}

}  // namespace coppice::server
