// Mailbox: how other threads reach the engine's thread: requests in the order they came, cancellations, orders
// about pinned prefixes, and the wish to stop. Thread safe; a lock is held only to push or to swap.
//
// What clients can make the engine hold is counted here, before the engine's thread sees it: all open requests together
// weigh at most `max_weight`. Of a request beyond that only its frame is kept. What several of them share weighs once.
// Questions and orders wait here, too, at most kMostQuestions and kMostOrders of them, and the engine takes a few in a
// step.
//
// Memory: push() takes all that a request needs to be opened and to be cancelled. So only push() throws, in the thread
// of whoever has a request; nothing of it is left then.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "check/mutex.h"
#include "engine/reply.h"
#include "engine/request.h"
#include "engine/sequence.h"
#include "engine/tier_config.h"
#include "engine/view.h"

namespace coppice::engine {

/// What each sample counts for, in tokens of 4 bytes: it may have 1 KiB before its first token
/// (tests/sampling/weight_test.cpp).
inline constexpr std::size_t kSampleWeight = 256;

/// What a prompt's token counts for besides, in tokens, if it is scored with `n_top` alternatives: its entry is on its
/// way to the client until that takes it (tests/sampling/weight_test.cpp).
inline constexpr std::size_t scored_weight(int n_top) {
  constexpr std::size_t kLong = 64, kUsual = 16;  // bytes of a token's name that std::string doesn't hold in place
  const std::size_t alternatives = static_cast<std::size_t>(n_top) * (sizeof(sampling::TokenLogprob) + kUsual);
  return (sizeof(sampling::PromptToken) + kLong + alternatives) / sizeof(kv::Token);
}

/// Calls each(what, tokens) for all that it shares with others: some may come several times.
template <class Each>
void for_each_share(const Request& request, Each each) {
  if (request.shared.what) each(request.shared.what.get(), request.shared.bytes / sizeof(kv::Token));
  for (std::size_t i = 0; i < request.prompt.n_media(); ++i) {
    const auto& rows = request.prompt.medium(i).embeddings;
    each(static_cast<const void*>(rows.get()), rows->size());  // a float is as large as a token
  }
}

/// Of its media, in tokens: a key pays for them whether they are shared or not, so that it can't fill all room with
/// them.
inline std::size_t media_weight(const Request& request) {
  std::size_t weight = 0;
  for (std::size_t i = 0; i < request.prompt.n_media(); ++i) weight += request.prompt.medium(i).embeddings->size();
  return weight;
}

/// What it shares with others, in tokens.
inline std::size_t shared_weight(const Request& request) {
  std::size_t weight = 0;
  for_each_share(request, [&](const void*, std::size_t tokens) { weight += tokens; });
  return weight;
}

/// What an embedding of n_embd values counts for, in tokens: it is summed up, and sent.
inline constexpr std::size_t pooled_weight(std::size_t n_embd) {
  return n_embd * (sizeof(double) + sizeof(float)) / sizeof(kv::Token);
}

/// What a request alone makes the engine hold while it is open, in tokens.
inline std::size_t weight(const Request& request) {
  constexpr std::size_t kFrame = 64;  // the request itself
  const std::size_t scored = request.scoring ? scored_weight(request.scoring->n_top) : 0;
  const std::size_t pooled = request.pooling ? pooled_weight(request.pooling->sum.size()) : 0;
  return request.prompt.size() * (1 + scored) + kSampleWeight * request.samples.size() + pooled +
         request.held_bytes / sizeof(kv::Token) + kFrame + shared_weight(request);
}

inline constexpr std::size_t kMostOfRest = 7;

/// Without an answer so far; the engine takes one in a step, or none.
inline constexpr std::size_t kMostQuestions = 64;
/// Orders about prefixes that wait, and that a step takes.
inline constexpr std::size_t kMostOrders = 64;
inline constexpr std::ptrdiff_t kOrdersInStep = 4;

template <class What, class Answer>
struct Asked {
  What what;
  Reply<Answer> reply;
};

struct Commands {
  std::vector<OpenRequests::node_type> requests;  ///< charge 0: it was too much, and all but its id is gone
  std::set<RequestId> cancelled;                  ///< pushed before, at the latest in `requests`
  std::list<Asked<Question, View>> questions;
  std::list<Asked<PrefixCommand, PrefixAnswer>> orders;
  std::optional<TierConfig> tiers;          ///< Engine::attach()
  std::optional<Clock::time_point> settle;  ///< Engine::settle()
  bool empty() const {
    return requests.empty() && cancelled.empty() && questions.empty() && orders.empty() && !tiers && !settle;
  }
};

class Mailbox {
 public:
  explicit Mailbox(std::size_t max_weight) : max_weight_(max_weight) {}

  /// A key may have kMostOfRest times as much weight as is then left, so that others find some.
  void push(Request&& request);
  /// A request ends. Ignores all other ids.
  void cancel(RequestId id) noexcept;
  /// False: too many wait, and this one is dropped, as all are after stop(). Questions and lists that nobody waits for
  /// any more are dropped, too.
  bool ask(Question question, Reply<View> reply);
  /// The same of an order. kKeepPayers always finds room, and comes before all others.
  bool ask(PrefixCommand order, Reply<PrefixAnswer> reply);
  void attach(TierConfig tiers);
  void settle(Clock::time_point until);
  void stop();  ///< drops the questions and orders that wait
  /// Ends a wait(), or the next one.
  void wake() noexcept;

  /// A request has ended.
  void give_back(const OpenRequest& ended);

  /// Fills `out`, which must be empty: all requests and cancellations, up to kOrdersInStep orders, and a question if
  /// one is wanted. Returns whether stop() was called. Takes no memory.
  bool drain(Commands& out, bool question = true);

  /// Sleeps until there is a command or stop(), or until then.
  void wait(std::optional<Clock::time_point> until = std::nullopt);

  std::int64_t submitted() const { return submitted_; }  ///< requests pushed since start

 private:
  bool is_fair(const std::string& key, std::size_t more, std::size_t rest) const COPPICE_REQUIRES(mutex_);

  const std::size_t max_weight_;
  check::Mutex mutex_;
  check::Condition changed_;
  Commands commands_ COPPICE_GUARDED_BY(mutex_);         ///< that nobody has drained
  std::set<RequestId> open_ COPPICE_GUARDED_BY(mutex_);  ///< pushed, not given back; cancel() moves them on
  std::size_t weight_ COPPICE_GUARDED_BY(mutex_) = 0;    ///< of open requests, and of what they share
  /// Of keys' open requests, alone and with their media; none is 0.
  std::map<std::string, std::size_t> weights_ COPPICE_GUARDED_BY(mutex_);
  struct Share {
    std::size_t holders = 0;  ///< how often open requests hold it; each has it alive
    std::size_t weight = 0;
  };
  using Shares = std::map<const void*, Share>;
  static Shares shares_of(const Request& request);
  static std::size_t let_go(const Request& request, Shares& shared);
  Shares shared_ COPPICE_GUARDED_BY(mutex_);
  std::atomic<std::int64_t> submitted_ = 0;
  bool stopped_ COPPICE_GUARDED_BY(mutex_) = false, woken_ COPPICE_GUARDED_BY(mutex_) = false;
};

}  // namespace coppice::engine
