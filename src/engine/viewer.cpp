#include "engine/viewer.h"

#include <algorithm>
#include <utility>

namespace coppice::engine {

namespace {

RequestStage stage_of(const OpenRequest& open) {
  RequestStage stage = RequestStage::kQueued;
  for (const auto& sequence : open.sequences) {
    switch (sequence->stage) {
      case SequenceStage::kDecode:
        return RequestStage::kDecode;
      case SequenceStage::kPrefill:
        stage = RequestStage::kPrefill;
        break;
      case SequenceStage::kFollowing:
      case SequenceStage::kAsking:
        if (stage == RequestStage::kQueued) stage = RequestStage::kFollowing;
        break;
      case SequenceStage::kReady:
      case SequenceStage::kEnded:
        break;
    }
  }
  return stage;
}

double between(Clock::time_point from, Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

}  // namespace

void Viewer::set_time(Clock::time_point now) {
  now_ = now;
  if (!std::exchange(started_, true)) {
    start_ = now;
    last_asked_ = now - 2 * kWatching;
  }
  cache_.set_time(seconds(now));
}

RequestView Viewer::describe(const OpenRequest& open) const {
  RequestView view{.id = open.request.id,
                   .stage = stage_of(open),
                   .prompt_tokens = open.usage.prompt_tokens,
                   .cached_tokens = open.usage.cached_tokens,
                   .loaded_tokens = open.usage.loaded_tokens,
                   .completion_tokens = open.usage.completion_tokens,
                   .samples = static_cast<int>(open.ended.size()),
                   .seconds = between(open.request.submitted, now_),
                   .queue_seconds = between(open.request.submitted, open.admitted_before ? open.admitted_at : now_),
                   .report = open.watched_report};
  if (open.streamed()) view.first_token_seconds = view.queue_seconds + open.usage.prompt_seconds;
  for (const auto& sequence : open.sequences) {
    view.computed_tokens = std::max(view.computed_tokens, sequence->computed);
    if (sequence->admitted()) view.stands_on.push_back(cache_.stands_on(sequence->seq));
  }
  return view;
}

View Viewer::answer(const Question& question, const RequestTable& requests) {
  last_asked_ = now_;
  View view{.tree = cache_.picture(question.ns, question.limits), .now = seconds(now_), .requests = {}, .left_out = 0};
  requests.for_each([&](const OpenRequest& open) {
    if (open.request.ns != question.ns) return true;
    if (view.requests.size() < kMostOpen) {
      view.requests.push_back(describe(open));
      return true;
    }
    return std::cmp_less(++view.left_out, kMostOpen);
  });
  for (const Ended& ended : ended_) {
    if (ended.ns != question.ns) continue;
    view.requests.push_back(ended.view);
    view.requests.back().seconds = between(ended.at, now_);
  }
  return view;
}

void Viewer::remember(const OpenRequest& ended) {
  RequestView view = describe(ended);
  view.stage = RequestStage::kEnded;
  view.answered = ended.all_ended() && ended.streamed();
  view.total_seconds = view.seconds;
  view.stands_on.clear();
  ended_.push_front({.ns = ended.request.ns, .view = std::move(view), .at = now_});
  if (ended_.size() > kMostEnded) ended_.pop_back();
}

}  // namespace coppice::engine
