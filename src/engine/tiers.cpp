#include "engine/tiers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <utility>

#include "check/assert.h"
#include "engine/piece_names.h"
#include "engine/sequence.h"
#include "engine/tier_box.h"
#include "tier/piece.h"

namespace coppice::engine {

namespace {

using Seconds = std::chrono::duration<double>;

// A question takes microseconds of a disk, and a round trip of a network.
constexpr double kLeastAsking = 0.02, kMostAsking = 1, kLeastLoading = 0.05, kMostLoading = 60;
constexpr std::size_t kMoved = std::size_t{32} << 20;  // bytes that one step loads: some milliseconds
// Where there is no other work: what a full pool gives up leaves in one step, and the bus carries as much the other way
// meanwhile.
constexpr std::size_t kMovedAlone = std::size_t{1} << 30;
constexpr auto kPause = std::chrono::milliseconds(5);  // until a buffer is free again, which nobody tells

Clock::time_point after(Clock::time_point now, double seconds) {
  return now + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

}  // namespace

Tiers::Tiers(kv::Cache& cache, const executor::ExecutorInfo& info, std::function<Clock::time_point()> now,
             std::function<void()> wake)
    : cache_(cache),
      info_(info),
      now_(std::move(now)),
      planner_(cache, config_),
      box_(std::make_shared<TierBox>(std::move(wake))),
      outflow_(cache, info, config_, figures_) {}

Tiers::~Tiers() {
  box_->close();
}

void Tiers::attach(TierConfig config) {
  COPPICE_ASSERT(!on() && info_.moves_blocks && cache_.config().share);
  config_ = std::move(config);
  cache_.on_eviction([this](const kv::Storable& one) { outflow_.evicted(one); });
}

bool Tiers::forget(std::optional<tier::StoreKind> place) {
  if (!on() || (place && !config_.store->is_at(*place))) return false;
  config_.store->forget({.kind = place, .model = config_.model, .space = {}, .unused_for = {}});
  outflow_.forget();
  cache_.forget_stored();
  return true;
}

void Tiers::revoke(const std::set<std::string>& owners) {
  if (!on()) return;
  for (const std::string& owner : owners)
    config_.store->forget({.kind = {}, .model = config_.model, .space = owner_name(owner), .unused_for = {}});
  outflow_.refuse(owners);
}

std::int64_t Tiers::pending_writes() const {
  std::int64_t sum = 0;
  for (const tier::Counters& place : on() ? config_.store->places() : std::vector<tier::Counters>())
    sum += place.pending;
  return sum;
}

double Tiers::seconds_to_compute(std::int32_t tokens, double otherwise) const {
  return tokens_per_second_ > 0 ? tokens / tokens_per_second_ : otherwise;
}

// --- asking

bool Tiers::ask(Sequence& sequence, std::int32_t matched, double tokens_per_second, Clock::time_point now) {
  if (!on() || sequence.asked) return false;
  sequence.asked = true;
  tokens_per_second_ = tokens_per_second;
  const kv::TextView text = sequence.matchable();
  const kv::Namespace& ns = sequence.request->request.ns;
  const std::int32_t bs = cache_.config().block_size;
  const std::int32_t base = planner_.whole_match(text, ns, matched);
  const std::int32_t end = static_cast<std::int32_t>(text.size()) / bs * bs;
  if (end <= std::max(base, matched)) return false;

  auto inflow = std::make_unique<Inflow>();
  inflow->ticket = ++last_ticket_;
  inflow->base = base;
  inflow->end = end;
  inflow->wanted = planner_.pieces(text.first(static_cast<std::size_t>(end)), ns, base);
  inflow->began = now;
  inflow->give_up = after(now, std::clamp(seconds_to_compute(end - base, kMostAsking), kLeastAsking, kMostAsking));
  std::vector<tier::Name> names;
  names.reserve(inflow->wanted.size());
  for (const WantedPiece& piece : inflow->wanted) names.push_back(piece.name);
  asking_.emplace(inflow->ticket, &sequence);
  const std::uint64_t ticket = inflow->ticket;
  sequence.inflow = std::move(inflow);
  ++figures_.asked;
  config_.store->find(std::move(names), [box = box_, ticket](std::vector<bool> held) {
    box->put({.ticket = ticket, .answer = true, .held = std::move(held)});
  });
  return true;
}

void Tiers::answered(Sequence& sequence, const std::vector<bool>& held, Clock::time_point now) {
  Inflow& inflow = *sequence.inflow;
  inflow.end =
      held.size() == inflow.wanted.size() ? planner_.usable_end(sequence.matchable(), inflow.base, held) : inflow.base;
  planner_.keep_needed(inflow.wanted, inflow.end);
  if (inflow.end == inflow.base) {
    ++figures_.found_nothing;
    sequence.inflow.reset();
  } else if (!worth_loading(inflow, now)) {
    ++figures_.not_worth;
    sequence.inflow.reset();
  }
}

bool Tiers::worth_loading(const Inflow& inflow, Clock::time_point now) const {
  const double rate = rate_.bytes_per_second(now);
  if (rate == 0 || tokens_per_second_ == 0 || config_.load_always) return true;
  double bytes = 0;
  for (const WantedPiece& piece : inflow.wanted)
    bytes += static_cast<double>(info_.outside_bytes(piece.group) * planner_.pages_of(piece.group));
  return bytes / rate < (inflow.end - inflow.base) / tokens_per_second_;
}

// --- what comes

std::vector<Sequence*> Tiers::poll(Clock::time_point now) {
  std::vector<Sequence*> ready;
  if (!on()) return ready;
  ready.reserve(asking_.size());  // before anything changes: it takes memory
  std::vector<TierBox::Item> items = box_->take();
  for (TierBox::Item& item : items) {
    if (!item.answer) rate_.came(static_cast<double>(item.buffer.size()), item.when);
    figures_.unsound += item.unsound ? 1 : 0;
    auto& waiting = item.answer ? asking_ : loading_;
    const auto found = waiting.find(item.ticket);
    if (found == waiting.end()) continue;  // it has left
    Sequence& sequence = *found->second;
    Inflow& inflow = *sequence.inflow;
    if (item.answer) {
      asking_.erase(found);
      ready.push_back(&sequence);
      try {
        answered(sequence, item.held, now);
      } catch (const std::exception&) {  // memory is short: it is computed
        sequence.inflow.reset();
      }
    } else if (item.buffer) {
      inflow.wanted[item.index].at = WantedPiece::At::kHere;
      inflow.wanted[item.index].buffer = std::move(item.buffer);
    } else {
      inflow.missed = std::min(inflow.missed, item.index);
    }
  }
  items.clear();  // their buffers are free again
  for (auto at = asking_.begin(); at != asking_.end();) {
    Sequence& sequence = *at->second;
    if (sequence.inflow->give_up > now) {
      ++at;
      continue;
    }
    ++figures_.late;
    at = asking_.erase(at);
    sequence.inflow.reset();
    ready.push_back(&sequence);
  }
  for (const auto& [ticket, sequence] : loading_) {
    Inflow& inflow = *sequence->inflow;
    if (inflow.give_up > now || inflow.missed != Inflow::kNone) continue;
    const auto is_there = [](const WantedPiece& piece) { return piece.at > WantedPiece::At::kComing; };
    const auto first = std::ranges::find_if_not(inflow.wanted, is_there);
    if (first == inflow.wanted.end()) continue;
    ++figures_.late;
    inflow.missed = static_cast<std::size_t>(first - inflow.wanted.begin());
  }
  load_more(now);
  figures_.bytes_per_second = rate_.bytes_per_second(now);
  return ready;
}

std::size_t Tiers::most_cached(Sequence& sequence, std::int32_t matched) {
  const kv::TextView text = sequence.matchable();
  if (sequence.inflow == nullptr) return text.size();
  Inflow& inflow = *sequence.inflow;
  const kv::Namespace& ns = sequence.request->request.ns;
  const std::int32_t bs = cache_.config().block_size;
  const std::int32_t base = planner_.whole_match(text, ns, matched);
  if (base < inflow.base || matched >= inflow.end) {  // some was evicted meanwhile, or computed
    drop(sequence);
    return text.size();
  }
  std::erase_if(inflow.wanted, [&](const WantedPiece& piece) { return piece.block < base / bs; });
  inflow.base = base;
  return static_cast<std::size_t>(base);
}

void Tiers::begin(Sequence& sequence, Clock::time_point now) {
  Inflow& inflow = *sequence.inflow;
  inflow.loads = true;
  inflow.began = now;
  const double compute = seconds_to_compute(inflow.end - inflow.base, kMostLoading);
  inflow.give_up = after(now, std::clamp(compute, kLeastLoading, kMostLoading));
  loading_.emplace(inflow.ticket, &sequence);
  ++figures_.loads;
  load_more(now);
}

void Tiers::drop(Sequence& sequence) {
  if (sequence.inflow == nullptr) return;
  if (sequence.inflow->loads) {
    const Came all = came(sequence);
    figures_.left += all.over ? 0 : 1;
    figures_.loads_cut += all.over && all.upto < sequence.inflow->end ? 1 : 0;
  }
  asking_.erase(sequence.inflow->ticket);
  loading_.erase(sequence.inflow->ticket);
  sequence.inflow.reset();
}

// Those who began first, as long as there are buffers.
void Tiers::load_more(Clock::time_point now) {
  for (const auto& [ticket, sequence] : loading_) {
    Inflow& inflow = *sequence->inflow;
    for (; inflow.next < std::min(inflow.wanted.size(), inflow.missed); ++inflow.next) {
      tier::Buffer buffer;
      if (!config_.store->shares()) buffer = config_.loads->take();
      if (!buffer && !config_.store->shares()) return;
      load(inflow, inflow.next, std::move(buffer), now);
    }
  }
}

void Tiers::load(Inflow& inflow, std::size_t index, tier::Buffer buffer, Clock::time_point now) {
  WantedPiece& piece = inflow.wanted[index];
  piece.at = WantedPiece::At::kComing;
  rate_.asked(now);
  config_.store->load(piece.name, std::move(buffer),
                      [box = box_, clock = now_, ticket = inflow.ticket, index, name = piece.name, text = piece.text,
                       bytes = info_.outside_bytes(piece.group) * planner_.pages_of(piece.group)](tier::Buffer got) {
                        const bool held = got.size() > 0;
                        const auto opened = tier::open_piece(got.bytes(), &name);
                        const bool sound =
                            opened && std::ranges::equal(opened->text, text) && opened->payload.size() == bytes;
                        box->put({.ticket = ticket,
                                  .index = index,
                                  .buffer = sound ? std::move(got) : tier::Buffer(),
                                  .unsound = held && !sound,
                                  .when = clock()});
                        return sound;
                      });
}

Tiers::Came Tiers::came(const Sequence& sequence) const {
  const Inflow& inflow = *sequence.inflow;
  const auto is_in = [](const WantedPiece& piece) { return piece.at == WantedPiece::At::kIn; };
  const std::size_t end = std::min(inflow.wanted.size(), inflow.missed);
  const auto first = std::ranges::find_if_not(inflow.wanted, is_in);
  const auto n = static_cast<std::size_t>(first - inflow.wanted.begin());
  if (planner_.any_beginning_is_usable())
    return {.upto = inflow.base + static_cast<std::int32_t>(n) * cache_.config().block_size, .over = n >= end};
  if (n == inflow.wanted.size()) return {.upto = inflow.end, .over = true};
  return {.upto = inflow.base, .over = inflow.missed != Inflow::kNone};
}

// --- steps

std::uint64_t Tiers::add_moves(std::vector<kv::BlockOp>& ops, std::vector<std::span<std::byte>>& outside, bool rests) {
  outside.clear();
  if (!on() || (rests && comes_soon())) return 0;
  ++last_moves_;
  try {
    outflow_.add_stores(last_moves_, ops, outside, rests);
    for (const auto& [ticket, sequence] : loading_) add_loads(*sequence, rests ? kMovedAlone : kMoved, ops, outside);
  } catch (const std::exception&) {
    not_moved(last_moves_);
    throw;
  }
  return outside.empty() ? 0 : last_moves_;
}

void Tiers::add_loads(const Sequence& sequence, std::size_t most, std::vector<kv::BlockOp>& ops,
                      std::vector<std::span<std::byte>>& outside) {
  Inflow& inflow = *sequence.inflow;
  std::size_t sum = 0;
  for (WantedPiece& piece : inflow.wanted) {
    if (piece.at != WantedPiece::At::kHere || sum > most) continue;
    landing_.reserve(landing_.size() + 1);  // before the buffer moves: it takes memory
    landing_.push_back({.moves = last_moves_,
                        .ticket = inflow.ticket,
                        .index = static_cast<std::size_t>(&piece - inflow.wanted.data()),
                        .buffer = std::move(piece.buffer)});
    piece.at = WantedPiece::At::kInStep;
    const tier::Buffer& buffer = landing_.back().buffer;
    sum += buffer.size();
    const std::size_t bytes = info_.outside_bytes(piece.group);
    const kv::BlockId block =
        piece.group == planner_.state_group()
            ? kv::kNullBlock
            : cache_.table(sequence.seq, piece.group).blocks[static_cast<std::size_t>(piece.block)];
    const std::span<const kv::BlockId> pages =
        piece.group == planner_.state_group() ? cache_.state(sequence.seq).out : std::span(&block, 1);
    const auto payload = buffer.bytes().last(bytes * pages.size());
    for (std::size_t i = 0; i < pages.size(); ++i) {
      ops.push_back({.kind = kv::BlockOp::Kind::kLoad,
                     .dst = pages[i],
                     .n_slots = info_.block_size,
                     .group = piece.group,
                     .outside = outside.size()});
      outside.push_back(payload.subspan(i * bytes, bytes));
    }
  }
}

void Tiers::moved(std::uint64_t moves, double seconds, Clock::time_point now) {
  if (!on()) return;
  outflow_.stored(moves, seconds);
  settle_loads(moves, /*done=*/true);
  load_more(now);
}

void Tiers::not_moved(std::uint64_t moves) {
  if (!on()) return;
  outflow_.failed(moves);
  settle_loads(moves, /*done=*/false);
}

void Tiers::settle_loads(std::uint64_t moves, bool done) {
  for (Landing& landing : landing_) {
    const auto found = landing.moves == moves ? loading_.find(landing.ticket) : loading_.end();
    if (found == loading_.end()) continue;  // it has left
    WantedPiece& piece = found->second->inflow->wanted[landing.index];
    piece.at = done ? WantedPiece::At::kIn : WantedPiece::At::kHere;
    if (!done) piece.buffer = std::move(landing.buffer);
  }
  std::erase_if(landing_, [&](const Landing& landing) { return landing.moves == moves; });
}

// What lies in this process's memory comes within microseconds. A step that does nothing else is one long step then,
// and waits for all of it.
bool Tiers::comes_soon() const {
  if (!config_.store->shares()) return false;
  return std::ranges::any_of(loading_, [](const auto& entry) {
    const Inflow& inflow = *entry.second->inflow;
    const auto asked = std::span(inflow.wanted).first(std::min(inflow.wanted.size(), inflow.missed));
    return std::ranges::find(asked, WantedPiece::At::kComing, &WantedPiece::at) != asked.end();
  });
}

bool Tiers::ready() const {
  if (on() && comes_soon()) return false;
  const auto is_here = [](const WantedPiece& piece) { return piece.at == WantedPiece::At::kHere; };
  return outflow_.ready() || std::ranges::any_of(loading_, [&](const auto& entry) {
           return std::ranges::any_of(entry.second->inflow->wanted, is_here);
         });
}

std::optional<Clock::time_point> Tiers::waits_until(Clock::time_point now) const {
  std::optional<Clock::time_point> first;
  const auto until = [&](Clock::time_point when) { first = first ? std::min(*first, when) : when; };
  for (const auto* waiting : {&asking_, &loading_}) {
    for (const auto& [ticket, sequence] : *waiting) until(sequence->inflow->give_up);
  }
  if (!outflow_.empty()) until(now + kPause);
  return first;
}

}  // namespace coppice::engine
