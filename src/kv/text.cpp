#include "kv/text.h"

#include <tuple>

#include "check/assert.h"
#include "kv/faults.h"
#include "kv/reserve_more.h"

namespace coppice::kv {

namespace {

/// The first span that ends behind `at`.
std::size_t span_behind(std::span<const MediumSpan> spans, std::int32_t at) {
  return static_cast<std::size_t>(std::ranges::upper_bound(spans, at, {}, &MediumSpan::end) - spans.begin());
}

}  // namespace

Cuts cuts(std::span<const MediumSpan> spans, std::int32_t at) {
  const Cuts here{at, at};
  if (spans.empty() || at == 0) return here;
  const std::size_t i = span_behind(spans, at - 1);  // the one with the symbol before, if that is of one
  if (i == spans.size() || spans[i].first >= at || !spans[i].medium.whole) return here;
  const MediumSpan& span = spans[i];
  const std::int32_t before = span.index + at - span.first;  // of its rows
  return before == span.medium.rows ? here : Cuts{at - before, at - before + span.medium.rows};
}

Symbol::Symbol(const Medium& medium, std::int32_t index) {
  std::uint64_t x = 0;
  std::memcpy(&x, medium.digest.data(), sizeof x);
  x += static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  bits_ = static_cast<std::int32_t>((x >> 32) | 0x80000000U);
}

// --- parts ----------------------------------------------------------------------------------------------------------

template <class F>
void TextView::for_each_span(F&& f) const {
  const auto end = base_ + static_cast<std::int32_t>(size());
  for (std::size_t i = span_behind(spans_, base_); i < spans_.size() && std::max(spans_[i].first, base_) < end; ++i) {
    MediumSpan span = spans_[i];
    const std::int32_t cut = std::max(base_ - span.first, 0);
    span.n = std::min(span.end(), end) - span.first - cut;
    span.first += cut - base_;
    span.index += cut;
    f(std::as_const(span));
  }
}

std::vector<MediumSpan> TextView::spans() const {
  std::vector<MediumSpan> result;
  for_each_span([&](const MediumSpan& span) { result.push_back(span); });
  return result;
}

std::size_t TextView::n_spans() const {
  std::size_t n = 0;
  for_each_span([&](const MediumSpan&) { ++n; });
  return n;
}

std::vector<Token> TextView::tokens() const {
  std::vector<Token> result;
  result.reserve(size());
  std::ranges::copy_if(bits_, std::back_inserter(result), [](std::int32_t bits) { return bits >= 0; });
  return result;
}

std::int32_t TextView::token_from(std::int32_t at) const {
  const auto end = static_cast<std::int32_t>(size());
  for (std::size_t i = span_behind(spans_, base_ + at); i < spans_.size() && spans_[i].first - base_ <= at; ++i)
    at = spans_[i].end() - base_;
  return std::min(at, end);
}

std::int32_t TextView::medium_from(std::int32_t at) const {
  const auto end = static_cast<std::int32_t>(size());
  const std::size_t i = span_behind(spans_, base_ + at);
  return i == spans_.size() ? end : std::min(std::max(spans_[i].first - base_, at), end);
}

const MediumSpan& TextView::span_at(std::size_t i) const {
  const std::size_t at = span_behind(spans_, base_ + static_cast<std::int32_t>(i));
  COPPICE_ASSERT(at < spans_.size() && spans_[at].first <= base_ + static_cast<std::int32_t>(i));
  return spans_[at];
}

// The first n symbols are equal. How many of the first n pieces are?
std::size_t TextView::first_other_medium(TextView b, std::size_t n) const {
  if (fault(Fault::kSymbolsOnly)) return n;
  for (std::size_t i = span_behind(spans_, base_); i < spans_.size(); ++i) {
    const MediumSpan& mine = spans_[i];
    auto at = static_cast<std::size_t>(std::max(mine.first - base_, 0));
    const std::size_t end = std::min(n, static_cast<std::size_t>(mine.end() - base_));
    if (at >= n) return n;
    while (at < end) {  // theirs may be two media, of the same symbols
      const MediumSpan& theirs = b.span_at(at);
      const std::int32_t shift = mine.first - base_ - (theirs.first - b.base_);
      if (mine.medium != theirs.medium || mine.index - theirs.index != shift) return at;
      at = std::min(end, static_cast<std::size_t>(theirs.end() - b.base_));
    }
  }
  return n;
}

bool operator<(TextView a, TextView b) {
  const std::size_t i = TextView::first_other(a, b);
  if (i == a.size() || i == b.size()) return a.size() < b.size();
  if (a.bits_[i] != b.bits_[i]) return a.bits_[i] < b.bits_[i];
  const auto piece = [i](const TextView& text) {
    const MediumSpan& span = text.span_at(i);
    return std::tuple(span.medium, static_cast<std::int32_t>(i) - (span.first - text.base_) + span.index);
  };
  return piece(a) < piece(b);
}

// --- a text of its own ----------------------------------------------------------------------------------------------

Text::Text(std::vector<Token> tokens) : bits_(std::move(tokens)) {
  COPPICE_ASSERT(std::ranges::none_of(bits_, [](Token token) { return token < 0; }));
}

std::optional<Text> Text::of(std::vector<std::int32_t> bits, std::span<const MediumSpan> spans) {
  const auto size = static_cast<std::int32_t>(bits.size());
  std::int32_t at = 0;
  const auto tokens_until = [&](std::int32_t end) {
    while (at < end && bits[static_cast<std::size_t>(at)] >= 0) ++at;
    return at == end;
  };
  for (const MediumSpan& span : spans) {
    const bool fits = span.first >= at && span.n > 0 && span.n <= size - span.first && span.index >= 0 &&
                      span.n <= span.medium.rows - span.index;
    if (!fits || !tokens_until(span.first)) return {};
    for (std::int32_t i = 0; i < span.n; ++i, ++at)
      if (Symbol(span.medium, span.index + i).bits_ != bits[static_cast<std::size_t>(at)]) return {};
  }
  if (!tokens_until(size)) return {};
  Text text;
  text.bits_ = std::move(bits);
  for (const MediumSpan& span : spans) text.append_span(span);
  return text;
}

void Text::make_room(std::size_t symbols, std::size_t spans) {
  reserve_more(bits_, symbols);
  if (spans > 0) reserve_more(spans_, spans);
}

void Text::append(TextView more) {
  make_room(more.size(), more.n_spans());
  const auto begin = static_cast<std::int32_t>(size());
  bits_.insert(bits_.end(), more.bits_.begin(), more.bits_.end());
  more.for_each_span([&](MediumSpan span) {
    span.first += begin;
    append_span(span);
  });
}

void Text::append(const Medium& medium) {
  COPPICE_ASSERT(medium.rows > 0);
  make_room(static_cast<std::size_t>(medium.rows), 1);
  spans_.push_back({.first = static_cast<std::int32_t>(size()), .n = medium.rows, .index = 0, .medium = medium});
  for (std::int32_t i = 0; i < medium.rows; ++i) bits_.push_back(Symbol(medium, i).bits_);
}

void Text::append_span(const MediumSpan& span) {
  if (!spans_.empty()) {
    MediumSpan& last = spans_.back();
    if (last.end() == span.first && last.index + last.n == span.index && last.medium == span.medium) {
      last.n += span.n;
      return;
    }
  }
  spans_.push_back(span);
}

void Text::truncate(std::size_t n) {
  COPPICE_ASSERT(n <= size());
  bits_.resize(n);
  const auto end = static_cast<std::int32_t>(n);
  while (!spans_.empty() && spans_.back().first >= end) spans_.pop_back();
  if (!spans_.empty()) spans_.back().n = std::min(spans_.back().n, end - spans_.back().first);
}

}  // namespace coppice::kv
