#include "engine/tiers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <utility>

#include "check/assert.h"
#include "check/mutex.h"
#include "engine/piece_names.h"
#include "engine/sequence.h"
#include "kv/block_bytes.h"
#include "tier/piece.h"

namespace coppice::engine {

namespace {

using Seconds = std::chrono::duration<double>;

// A question takes microseconds of a disk, and a round trip of a network.
constexpr double kLeastAsking = 0.02, kMostAsking = 1, kLeastLoading = 0.05, kMostLoading = 60;
constexpr std::size_t kMoved = std::size_t{32} << 20;  // bytes that one step loads: some milliseconds
constexpr auto kPause = std::chrono::milliseconds(5);  // until a buffer is free again, which nobody tells

Clock::time_point after(Clock::time_point now, double seconds) {
  return now + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

}  // namespace

// What the store's threads bring. They hold it as long as they may bring something.
struct Tiers::Box {
  struct Item {
    std::uint64_t ticket = 0;
    bool answer = false;  // to a question
    std::vector<bool> held;
    std::size_t index = 0;  // else a piece
    tier::Buffer buffer;    // none: it didn't come
    bool unsound = false;
    Clock::time_point when{};
  };

  void put(Item item) noexcept {
    const check::Lock lock(mutex);
    if (!wake) return;  // nobody is there any more
    try {
      items.push_back(std::move(item));
    } catch (const std::exception&) {  // it is given up when its time is over
    }
    wake();
  }

  void wake_with(std::function<void()> w) {
    const check::Lock lock(mutex);
    wake = std::move(w);
  }
  // From now on nothing is taken.
  void close() {
    const check::Lock lock(mutex);
    wake = nullptr;
    items.clear();
  }

  check::Mutex mutex;
  std::vector<Item> items COPPICE_GUARDED_BY(mutex);
  std::function<void()> wake COPPICE_GUARDED_BY(mutex);
};

Tiers::Tiers(kv::Cache& cache, const executor::ExecutorInfo& info, std::function<Clock::time_point()> now,
             std::function<void()> wake)
    : cache_(cache),
      info_(info),
      now_(std::move(now)),
      n_tables_(cache.config().n_groups()),
      has_states_(cache.config().state_pages > 0),
      box_(std::make_shared<Box>()),
      outflow_(cache, info, config_, figures_) {
  box_->wake_with(std::move(wake));
}

Tiers::~Tiers() {
  box_->close();
}

void Tiers::attach(TierConfig config) {
  COPPICE_ASSERT(!on() && info_.moves_blocks && cache_.config().share);
  config_ = std::move(config);
  cache_.on_eviction([this](const kv::Storable& one) { outflow_.evicted(one); });
}

bool Tiers::forget(std::optional<tier::Place> place) {
  if (!on() || (place && !config_.store->is_at(*place))) return false;
  config_.store->forget({.place = place, .model = config_.model, .space = {}, .unused_for = {}});
  outflow_.forget();
  cache_.forget_stored();
  return true;
}

void Tiers::revoke(const std::set<std::string>& owners) {
  if (!on()) return;
  for (const std::string& owner : owners)
    config_.store->forget({.place = {}, .model = config_.model, .space = owner_name(owner), .unused_for = {}});
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

// --- asking -----------------------------------------------------------------------------------------------------------

// The longest match up to `matched` that ends with a whole block. A shorter one has other windows and another state.
std::int32_t Tiers::whole_match(kv::TextView text, const kv::Namespace& ns, std::int32_t matched) const {
  const std::int32_t bs = cache_.config().block_size;
  for (;;) {
    const std::int32_t whole = matched / bs * bs;
    if (whole == 0) return 0;
    matched = cache_.match(text.first(static_cast<std::size_t>(whole)), ns);
    if (matched == whole) return whole;
  }
}

bool Tiers::ask(Sequence& sequence, std::int32_t matched, double tokens_per_second, Clock::time_point now) {
  if (!on() || sequence.asked) return false;
  sequence.asked = true;
  tokens_per_second_ = tokens_per_second;
  const kv::TextView text = sequence.matchable();
  const kv::Namespace& ns = sequence.request->request.ns;
  const std::int32_t bs = cache_.config().block_size;
  const std::int32_t base = whole_match(text, ns, matched);
  const std::int32_t end = static_cast<std::int32_t>(text.size()) / bs * bs;
  if (end <= std::max(base, matched)) return false;

  auto inflow = std::make_unique<Inflow>();
  inflow->ticket = ++last_ticket_;
  inflow->base = base;
  inflow->end = end;
  inflow->wanted = pieces(text.first(static_cast<std::size_t>(end)), ns, base);
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

// Block after block: one of each group, then the state at its end.
std::vector<WantedPiece> Tiers::pieces(kv::TextView text, const kv::Namespace& ns, std::int32_t base) const {
  const kv::CacheConfig& config = cache_.config();
  const auto bs = static_cast<std::size_t>(config.block_size);
  const auto space = space_name(ns);
  kv::Digest digest = kv::root_digest(config.hash, config.model, config.layout, ns);
  if (base > 0) {
    const auto blocks = cache_.whole_blocks(text.first(static_cast<std::size_t>(base)), ns);
    digest = cache_.storables().digest_of(blocks.back()).value();
  }
  std::vector<WantedPiece> wanted;
  for (auto at = static_cast<std::size_t>(base); at < text.size(); at += bs) {
    const kv::TextView block = text.subspan(at, bs);
    digest = kv::block_digest(config.hash, digest, block);
    const std::vector<std::byte> own = kv::spell(block);
    for (int g = 0; g < n_tables_ + (has_states_ ? 1 : 0); ++g) {
      wanted.push_back({.group = g,
                        .block = static_cast<std::int32_t>(at / bs),
                        .name = piece_name(config_.model, space, digest, g),
                        .text = own});
    }
  }
  return wanted;
}

// The longest length, whole blocks, with all that a sequence needs which starts there; `base`: there is none.
std::int32_t Tiers::usable_end(kv::TextView text, const Inflow& inflow, const std::vector<bool>& held) const {
  const kv::CacheConfig& config = cache_.config();
  const std::int32_t bs = config.block_size, first = inflow.base / bs;
  const int each = n_tables_ + (has_states_ ? 1 : 0);
  const auto has = [&](int g, std::int32_t b) { return held[static_cast<std::size_t>((b - first) * each + g)]; };
  const auto blocks = static_cast<std::int32_t>(held.size()) / each;
  std::vector<std::int32_t> since(static_cast<std::size_t>(n_tables_), first);  // no hole from there on
  std::int32_t best = inflow.base;
  for (std::int32_t b = first; b < first + blocks; ++b) {
    if (!has(0, b)) break;
    const std::int32_t length = (b + 1) * bs;
    bool usable = text.may_be_cut(length) && (!has_states_ || has(n_tables_, b));
    for (int g = 1; g < n_tables_; ++g) {
      std::int32_t& begin = since[static_cast<std::size_t>(g)];
      if (!has(g, b)) begin = b + 1;
      usable = usable && begin <= std::max(first, config.first_needed_block(g, length));
    }
    if (usable) best = length;
  }
  return best;
}

void Tiers::answered(Sequence& sequence, const std::vector<bool>& held, Clock::time_point now) {
  Inflow& inflow = *sequence.inflow;
  const kv::CacheConfig& config = cache_.config();
  const std::int32_t bs = config.block_size;
  const std::int32_t end =
      held.size() == inflow.wanted.size() ? usable_end(sequence.matchable(), inflow, held) : inflow.base;
  const auto needed = [&](const WantedPiece& piece) {
    if (piece.block >= end / bs) return false;
    if (piece.group == n_tables_) return piece.block == end / bs - 1;
    return piece.block >= config.first_needed_block(piece.group, end);
  };
  std::erase_if(inflow.wanted, [&](const WantedPiece& piece) { return !needed(piece); });
  // What is of use only together comes first: less is loaded in vain.
  std::ranges::sort(inflow.wanted, {}, [](const WantedPiece& piece) { return std::pair(-piece.group, piece.block); });
  inflow.end = end;
  if (end == inflow.base) {
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
    bytes += static_cast<double>(info_.outside_bytes(piece.group) *
                                 static_cast<std::size_t>(piece.group == n_tables_ ? cache_.config().state_pages : 1));
  return bytes / rate < (inflow.end - inflow.base) / tokens_per_second_;
}

// --- what comes -------------------------------------------------------------------------------------------------------

std::vector<Sequence*> Tiers::poll(Clock::time_point now) {
  std::vector<Sequence*> ready;
  if (!on()) return ready;
  ready.reserve(asking_.size());  // before anything changes: it takes memory
  std::vector<Box::Item> items;
  {
    const check::Lock lock(box_->mutex);
    items.swap(box_->items);
  }
  for (Box::Item& item : items) {
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
  const std::int32_t base = whole_match(text, ns, matched);
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
      tier::Buffer buffer = config_.loads->take();
      if (!buffer) return;
      load(inflow, inflow.next, std::move(buffer), now);
    }
  }
}

void Tiers::load(Inflow& inflow, std::size_t index, tier::Buffer buffer, Clock::time_point now) {
  WantedPiece& piece = inflow.wanted[index];
  piece.at = WantedPiece::At::kComing;
  rate_.asked(now);
  const auto pages = static_cast<std::size_t>(piece.group == n_tables_ ? cache_.config().state_pages : 1);
  config_.store->load(piece.name, std::move(buffer),
                      [box = box_, clock = now_, ticket = inflow.ticket, index, name = piece.name, text = piece.text,
                       bytes = info_.outside_bytes(piece.group) * pages](tier::Buffer got) {
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
  if (keeps_all())
    return {.upto = inflow.base + static_cast<std::int32_t>(n) * cache_.config().block_size, .over = n >= end};
  if (n == inflow.wanted.size()) return {.upto = inflow.end, .over = true};
  return {.upto = inflow.base, .over = inflow.missed != Inflow::kNone};
}

// --- steps ------------------------------------------------------------------------------------------------------------

std::uint64_t Tiers::add_moves(std::vector<kv::BlockOp>& ops, std::vector<std::span<std::byte>>& outside, bool rests) {
  outside.clear();
  if (!on()) return 0;
  ++last_moves_;
  try {
    outflow_.add_stores(last_moves_, ops, outside, rests);
    for (const auto& [ticket, sequence] : loading_) add_loads(*sequence, ops, outside);
  } catch (const std::exception&) {
    not_moved(last_moves_);
    throw;
  }
  return outside.empty() ? 0 : last_moves_;
}

void Tiers::add_loads(const Sequence& sequence, std::vector<kv::BlockOp>& ops,
                      std::vector<std::span<std::byte>>& outside) {
  Inflow& inflow = *sequence.inflow;
  std::size_t sum = 0;
  for (WantedPiece& piece : inflow.wanted) {
    if (piece.at != WantedPiece::At::kHere || sum > kMoved) continue;
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
        piece.group == n_tables_
            ? kv::kNullBlock
            : cache_.table(sequence.seq, piece.group).blocks[static_cast<std::size_t>(piece.block)];
    const std::span<const kv::BlockId> pages =
        piece.group == n_tables_ ? cache_.state(sequence.seq).out : std::span(&block, 1);
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

bool Tiers::ready() const {
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
