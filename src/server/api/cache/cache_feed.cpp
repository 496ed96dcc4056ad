#include "server/api/cache/cache_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "check/assert.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

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

KeyQuota::Permit CacheFeed::enter(const std::string& key) {
  COPPICE_ASSERT(io_thread_.mine());
  auto permit = lookers_.take(key);
  if (!permit) throw too_many("requests look into the cache");
  return *std::move(permit);
}

CacheFeed::Subject CacheFeed::subject_of(const engine::Question& question) {
  const kv::PictureLimits& limits = question.limits;
  return {.ns = question.ns, .nodes = limits.nodes, .depth = limits.depth, .head_tokens = limits.head_tokens};
}

std::shared_ptr<CacheFeed::Asked> CacheFeed::asked(Model& model, const engine::Question& question,
                                                   const std::string& key) {
  std::erase_if(asked_, [](const auto& entry) { return entry.second.expired(); });
  Subject subject = subject_of(question);
  // Whoever asks behind an answer is to see what happens from now on.
  if (const auto known = asked_.find(subject); known != asked_.end())
    if (auto asked = known->second.lock(); !asked->view.done()) return asked;
  auto permit = question_quota_.take(key);
  if (!permit) throw too_many("questions about the cache");
  auto asked = std::make_shared<Asked>(io_, *std::move(permit));
  if (!model.ask(question, asked->view.reply())) throw too_many("questions about the cache");
  asked_.insert_or_assign(std::move(subject), asked);
  return asked;
}

asio::awaitable<CacheFeed::View> CacheFeed::ask(Model& model, engine::Question question, const std::string& key) {
  COPPICE_ASSERT(io_thread_.mine());
  const auto asked = this->asked(model, question, key);
  co_return co_await asked->view.answer();
}

std::shared_ptr<CacheFeed::Frame> CacheFeed::frame(engine::Question question, const std::string& key) {
  COPPICE_ASSERT(io_thread_.mine());
  std::erase_if(frames_, [](const auto& entry) { return entry.second.expired(); });
  Subject subject = subject_of(question);
  if (const auto known = frames_.find(subject); known != frames_.end()) return known->second.lock();
  auto permit = frame_quota_.take(key);
  if (!permit) throw too_many("feeds of the cache with different parameters");
  auto frame = std::make_shared<Frame>(std::move(question), key, *std::move(permit));
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

}  // namespace coppice::server
