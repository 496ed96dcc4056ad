#include "server/api/cache/cache_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <list>
#include <utility>

#include "check/assert.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

/// A step may take seconds. Longer than this only one that hangs.
constexpr std::chrono::seconds kLongestStep{60};

/// Grows with everything that a View may show.
std::int64_t stamp_of(const engine::Snapshot& s) {
  std::int64_t stored = s.tiers.stored + s.tiers.refused;
  for (const tier::Counters& place : s.places) stored += place.writes + place.evicted + place.switch_offs;
  return stored + s.steps + s.requests_submitted + s.admissions + s.requests_finished + s.requests_cancelled +
         s.requests_refused + s.requests_failed + s.requests_timed_out + s.pin_changes + s.cache.evictions;
}

RequestError too_many(const char* what) {
  return RequestError::queue_full(fmt::format("Too many {} at once.", what));
}

}  // namespace

/// A question that the engine has, and who waits for its answer. It is dropped with the last of them.
struct CacheFeed::Asked {
  Asked(CacheFeed& f, Model& m, KeyQuota::Place p) : feed(f), model(m), place(std::move(p)) {}
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  ~Asked() {
    if (view) return;
    forget();
    model.cancel(id);
  }
  void forget() {
    feed.hub_.remove(id);
    feed.waiting_.erase(id);
    feed.asked_.erase(subject);
  }
  void wake() const {
    for (asio::steady_timer* const news : waiting) news->cancel();
  }

  CacheFeed& feed;
  Model& model;
  KeyQuota::Place place;
  engine::RequestId id = 0;
  Subject subject;
  View view;
  std::list<asio::steady_timer*> waiting;
};

CacheFeed::~CacheFeed() {
  for (const auto& [id, asked] : waiting_) hub_.remove(id);
}

KeyQuota::Place CacheFeed::enter(const std::string& key) {
  COPPICE_ASSERT(io_thread_.mine());
  auto place = lookers_.take(key);
  if (!place) throw too_many("requests look into the cache");
  return *std::move(place);
}

CacheFeed::Subject CacheFeed::subject_of(const engine::Question& question) {
  const kv::PictureLimits& limits = question.limits;
  return {.ns = question.ns, .nodes = limits.nodes, .depth = limits.depth, .head_tokens = limits.head_tokens};
}

std::shared_ptr<CacheFeed::Asked> CacheFeed::asked(Model& model, engine::Question question, const std::string& key) {
  Subject subject = subject_of(question);
  if (const auto known = asked_.find(subject); known != asked_.end()) return known->second.lock();
  auto place = question_places_.take(key);
  if (!place) throw too_many("questions about the cache");
  auto asked = std::make_shared<Asked>(*this, model, *std::move(place));
  asked->id = question.id = model.next_id();
  asked->subject = subject;
  asked_.emplace(std::move(subject), asked);
  waiting_.emplace(asked->id, asked.get());
  hub_.add(asked->id, *this);
  if (!model.ask(std::move(question))) throw too_many("questions about the cache");
  return asked;
}

asio::awaitable<CacheFeed::View> CacheFeed::ask(Model& model, engine::Question question, const std::string& key) {
  COPPICE_ASSERT(io_thread_.mine());
  if (ended_) co_return nullptr;
  const auto asked = this->asked(model, std::move(question), key);
  asio::steady_timer news(co_await asio::this_coro::executor, kLongestStep);
  struct Waiting {
    std::list<asio::steady_timer*>& all;
    std::list<asio::steady_timer*>::iterator place;
    ~Waiting() { all.erase(place); }
  } const waiting{asked->waiting, asked->waiting.insert(asked->waiting.end(), &news)};
  boost::system::error_code ignored;
  co_await news.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  co_return asked->view;
}

std::shared_ptr<CacheFeed::Frame> CacheFeed::frame(engine::Question question, const std::string& key) {
  COPPICE_ASSERT(io_thread_.mine());
  std::erase_if(frames_, [](const auto& entry) { return entry.second.expired(); });
  Subject subject = subject_of(question);
  if (const auto known = frames_.find(subject); known != frames_.end()) return known->second.lock();
  auto place = frame_places_.take(key);
  if (!place) throw too_many("feeds of the cache with different parameters");
  auto frame = std::make_shared<Frame>(std::move(question), key, *std::move(place));
  frames_.emplace(std::move(subject), frame);
  return frame;
}

asio::awaitable<void> CacheFeed::refresh(std::shared_ptr<Frame> frame, Model& model, const MakeText& make) {
  COPPICE_ASSERT(io_thread_.mine());
  const auto now = std::chrono::steady_clock::now();
  const engine::Snapshot before = model.snapshot();
  const bool fresh = frame->text && (now - frame->made < kTick / 2 || frame->stamp == stamp_of(before));
  if (fresh || frame->making) co_return;
  struct Making {
    bool& making;
    ~Making() { making = false; }
  } const mark{frame->making = true};
  View view;
  try {
    view = co_await ask(model, frame->question, frame->key);
  } catch (const RequestError&) {  // too many ask: the next tick may find room
  }
  if (!view) co_return;
  const engine::Snapshot figures = model.snapshot();
  std::string text;
  co_await worker_.run({}, 0, [&] {
    text = make(*view, figures);
    return true;
  });
  frame->text = std::make_shared<const std::string>(std::move(text));
  ++frame->version;
  frame->made = std::chrono::steady_clock::now();
  frame->stamp = stamp_of(before);
}

std::chrono::steady_clock::duration CacheFeed::pause(std::size_t bytes) const {
  const double seconds = static_cast<double>(bytes * lookers_.used()) / static_cast<double>(kBytesPerSecond);
  return std::max<std::chrono::steady_clock::duration>(
      kTick, std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds)));
}

void CacheFeed::on_event(engine::Event&& event) {
  COPPICE_ASSERT(io_thread_.mine());
  const auto found = waiting_.find(event.request);
  if (found == waiting_.end()) return;
  Asked& asked = *found->second;
  asked.view = std::move(event.view);
  if (asked.view) asked.forget();  // whoever asks from now on is to see what happens from now on
  asked.wake();
}

void CacheFeed::on_no_memory(engine::RequestId id) noexcept {
  COPPICE_ASSERT(io_thread_.mine());
  if (const auto found = waiting_.find(id); found != waiting_.end()) found->second->wake();
}

void CacheFeed::on_shutdown() {
  COPPICE_ASSERT(io_thread_.mine());
  ended_ = true;
  for (const auto& [id, asked] : waiting_) asked->wake();
}

}  // namespace coppice::server
