// A new question to the tree or the scheduler: about one request, a field of Request, answered in its events
// (cache_report). Any other: a const method of kv::Cache (explain()) and an order here, which Model and Engine pass on,
// StepLoop::obey() obeys and answers. Texts of another namespace must not be shown.
#include "engine/mailbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "check/assert.h"

namespace coppice::engine {

namespace {

bool only_asks(const Question&) {
  return true;
}

bool only_asks(const PrefixCommand& order) {
  return order.kind == PrefixCommand::Kind::kList;
}

/// Moves what nobody waits for any more, and what changes nothing, to `dropped`. Takes no memory.
template <class What, class Answer>
void drop_unwanted(std::list<Asked<What, Answer>>& from, std::list<Asked<What, Answer>>& dropped) {
  for (auto it = from.begin(); it != from.end();) {
    const auto next = std::next(it);
    if (only_asks(it->what) && !it->reply.wanted()) dropped.splice(dropped.end(), from, it);
    it = next;
  }
}

}  // namespace

void Mailbox::push(Request&& request) {
  const RequestId id = request.id;
  const std::size_t shared = shared_weight(request), own = weight(request) - shared;
  const std::size_t of_key = own + media_weight(request);
  OpenRequests opened;
  OpenRequest& open = opened.try_emplace(id, std::move(request)).first->second;
  open.weight = own + shared;
  std::set<RequestId> place{id};
  Shares shares = shares_of(open.request);
  const std::string key = open.key();
  std::map<std::string, std::size_t> fresh{{key, 0}};
  Request too_much;  // goes without the lock
  {
    const check::Lock lock(mutex_);
    auto& node = commands_.requests.emplace_back();  // nothing throws from here on
    std::size_t more = own;
    for (const auto& [what, share] : shares) more += shared_.contains(what) ? 0 : share.weight;
    if (more <= max_weight_ - weight_ && is_fair(key, of_key, max_weight_ - weight_ - more)) {
      open.charge = own;
      weight_ += more;
      weights_.merge(fresh);
      weights_.find(key)->second += of_key;
      shared_.merge(shares);
      for (const auto& [what, share] : shares) shared_.find(what)->second.holders += share.holders;  // were there
    } else {
      too_much = std::exchange(open.request,
                               {.id = id, .ns = std::move(open.request.ns), .submitted = open.request.submitted});
      open.sequences.clear();
    }
    node = opened.extract(id);
    open_.merge(place);
    ++submitted_;
  }
  changed_.notify_one();
}

Mailbox::Shares Mailbox::shares_of(const Request& request) {
  Shares shares;
  for_each_share(request, [&](const void* what, std::size_t weight) {
    Share& share = shares[what];
    ++share.holders;
    share.weight = weight;
  });
  return shares;
}

/// Returns the weight of what nobody holds any more.
std::size_t Mailbox::let_go(const Request& request, Shares& shared) {
  std::size_t weight = 0;
  for_each_share(request, [&](const void* what, std::size_t) {
    const auto share = shared.find(what);
    if (--share->second.holders > 0) return;
    weight += share->second.weight;
    shared.erase(share);
  });
  return weight;
}

/// Without keys, and for one that has nothing: yes.
bool Mailbox::is_fair(const std::string& key, std::size_t more, std::size_t rest) const {
  const auto own = weights_.find(key);
  return key.empty() || own == weights_.end() || own->second + more <= kMostOfRest * rest;
}

void Mailbox::cancel(RequestId id) noexcept {
  const check::Lock lock(mutex_);
  commands_.cancelled.insert(open_.extract(id));
  changed_.notify_one();
}

// Askers are told of what is dropped when the lock is open again.
bool Mailbox::ask(Question question, Reply<View> reply) {
  decltype(commands_.questions) fresh, dropped;
  fresh.push_back({std::move(question), std::move(reply)});
  const check::Lock lock(mutex_);
  drop_unwanted(commands_.questions, dropped);
  if (stopped_) return true;
  if (commands_.questions.size() >= kMostQuestions) return false;
  commands_.questions.splice(commands_.questions.end(), fresh);
  changed_.notify_one();
  return true;
}

bool Mailbox::ask(PrefixCommand order, Reply<PrefixAnswer> reply) {
  const bool urgent = order.kind == PrefixCommand::Kind::kKeepPayers;
  decltype(commands_.orders) fresh, dropped;
  fresh.push_back({std::move(order), std::move(reply)});
  const check::Lock lock(mutex_);
  auto& orders = commands_.orders;
  drop_unwanted(orders, dropped);
  if (stopped_) return true;
  if (!urgent && orders.size() >= kMostOrders) return false;
  orders.splice(urgent ? orders.begin() : orders.end(), fresh);
  changed_.notify_one();
  return true;
}

void Mailbox::attach(TierConfig tiers) {
  const check::Lock lock(mutex_);
  commands_.tiers = std::move(tiers);
  changed_.notify_one();
}

void Mailbox::settle(Clock::time_point until) {
  const check::Lock lock(mutex_);
  commands_.settle = until;
  changed_.notify_one();
}

void Mailbox::stop() {
  Commands dropped;
  const check::Lock lock(mutex_);
  stopped_ = true;
  dropped.questions.swap(commands_.questions);
  dropped.orders.swap(commands_.orders);
  changed_.notify_one();
}

void Mailbox::wake() noexcept {
  const check::Lock lock(mutex_);
  woken_ = true;
  changed_.notify_one();
}

void Mailbox::give_back(const OpenRequest& ended) {
  const check::Lock lock(mutex_);
  COPPICE_ASSERT(ended.charge <= weight_);
  weight_ -= ended.charge;
  const auto own = ended.charge == 0 ? weights_.end() : weights_.find(ended.key());
  if (own != weights_.end() && (own->second -= ended.charge + media_weight(ended.request)) == 0) weights_.erase(own);
  if (ended.charge > 0) weight_ -= let_go(ended.request, shared_);
  open_.erase(ended.request.id);
}

bool Mailbox::drain(Commands& out, bool question) {
  COPPICE_ASSERT(out.empty());
  const auto take_first = [](auto& to, auto& from, std::ptrdiff_t most) {
    to.splice(to.end(), from, from.begin(), std::next(from.begin(), std::min(std::ssize(from), most)));
  };
  Commands dropped;
  const check::Lock lock(mutex_);
  drop_unwanted(commands_.questions, dropped.questions);
  drop_unwanted(commands_.orders, dropped.orders);
  std::swap(out.requests, commands_.requests);
  std::swap(out.cancelled, commands_.cancelled);
  out.tiers = std::exchange(commands_.tiers, std::nullopt);
  out.settle = std::exchange(commands_.settle, std::nullopt);
  take_first(out.orders, commands_.orders, kOrdersInStep);
  take_first(out.questions, commands_.questions, question ? 1 : 0);
  woken_ = false;
  return stopped_;
}

void Mailbox::wait(std::optional<Clock::time_point> until) {
  check::Lock lock(mutex_);
  while (!stopped_ && !woken_ && commands_.empty()) {
    if (!until)
      changed_.wait(lock);
    else if (!changed_.wait_until(lock, *until))
      return;
  }
}

}  // namespace coppice::engine
