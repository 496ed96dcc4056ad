// Text: what a prompt or a path of the tree says: tokens, and pieces of media (pictures) between them. TextView: a part
// of one. Values: any thread, one at a time where it is changed. Positions in a text are indices of symbols, from 0.
//
// A text is a row of symbols of 32 bits. The top bit tells a piece of a medium from a token; its other bits are hashed
// from the medium's digest and the piece's index, so mostly different media differ in their first symbol. That is no
// identity: what is held of a medium says its whole digest, and two pieces are equal only if these are, too.
//
// Some media can't be cut: their rows see each other both ways. Where a text may be cut is cuts(), and nothing else: a
// match ends there, so does a chunk of a prompt, a state stands there.
//
// Invariants
//  1. Spans are in order, don't overlap, and cover exactly the symbols that are no tokens. Neighbouring pieces of one
//     medium that go on from each other are one span. So equal texts have equal spans.
//
// A text without media has no spans: then nothing here costs more than for a list of tokens.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/types.h"

namespace coppice::kv {

/// What stands in a text besides tokens. All who name it by one digest say the same of it.
struct Medium {
  Digest digest{};        ///< of all that decides its rows: what it shows, and how that becomes rows
  std::int32_t rows = 0;  ///< symbols in a text, at least 1
  /// Its rows see each other both ways: it is computed in one step, and matched whole or not at all.
  bool whole = false;
  friend auto operator<=>(const Medium&, const Medium&) = default;
};

/// Symbols in a row that are pieces of one medium: [index, index + n) of its rows at [first, first + n) of the text.
struct MediumSpan {
  std::int32_t first = 0, n = 0;
  std::int32_t index = 0;
  Medium medium;
  std::int32_t end() const { return first + n; }
};

/// The places nearest to one, before and behind it, where a text may be cut; both are that place itself if it may be
/// cut there.
struct Cuts {
  std::int32_t before = 0, behind = 0;
};

/// The one function that says where a text may be cut. Its spans are in order, and whole media have all their rows
/// before and behind `at`, or none: what is cut of one counts as being there.
Cuts cuts(std::span<const MediumSpan> spans, std::int32_t at);

/// What stands at a place of a text.
class Symbol {
 public:
  Symbol(Token token) : bits_(token) {}  // NOLINT(google-explicit-constructor): most symbols are tokens
  /// Its piece `index`, from 0. REQUIRES: index < medium.rows.
  Symbol(const Medium& medium, std::int32_t index);

  /// None: it is a piece of a medium.
  std::optional<Token> token() const { return bits_ >= 0 ? std::optional(bits_) : std::nullopt; }
  friend bool operator==(Symbol, Symbol) = default;

 private:
  friend class Text;
  std::int32_t bits_;
};

/// A part of a text that somebody keeps, and that doesn't change meanwhile. A list of tokens converts to one. Only
/// spans() and tokens() take memory (std::bad_alloc). REQUIRES: its parts lie inside of it.
class TextView {
 public:
  TextView() = default;
  template <class Tokens>
    requires std::convertible_to<Tokens&&, std::span<const Token>>
  TextView(Tokens&& tokens)  // NOLINT(google-explicit-constructor, bugprone-forwarding-reference-overload)
      : bits_(std::span<const Token>(std::forward<Tokens>(tokens))) {}

  std::size_t size() const { return bits_.size(); }
  bool empty() const { return bits_.empty(); }
  Symbol operator[](std::size_t i) const { return bits_[i]; }
  TextView first(std::size_t n) const { return {bits_.first(n), spans_, base_}; }
  TextView last(std::size_t n) const { return subspan(size() - n); }
  TextView subspan(std::size_t at) const { return {bits_.subspan(at), spans_, base_ + static_cast<std::int32_t>(at)}; }
  TextView subspan(std::size_t at, std::size_t n) const { return subspan(at).first(n); }

  /// 0 <= at <= size(). Outside of the view they are below 0, or above size().
  Cuts cuts(std::int32_t at) const {
    if (spans_.empty()) return {at, at};
    const Cuts all = kv::cuts(spans_, base_ + at);
    return {all.before - base_, all.behind - base_};
  }
  bool may_be_cut(std::int32_t at) const { return cuts(at).before == at; }

  /// The first place from `at` on where a token stands, or a piece of a medium; size(): there is none.
  std::int32_t token_from(std::int32_t at) const;
  std::int32_t medium_from(std::int32_t at) const;

  /// Its media, `first` counted from its beginning; a medium that begins or ends outside of it is cut.
  std::vector<MediumSpan> spans() const;
  std::size_t n_spans() const;
  /// Its tokens. Pieces of media are left out.
  std::vector<Token> tokens() const;
  /// What symbols are made of, for hashes and people: a token as it is, a piece of a medium as a negative number.
  /// [size()].
  std::span<const std::int32_t> bits() const { return bits_; }

  /// The number of leading symbols that are equal in both. A prompt of 32,000 tokens takes microseconds.
  friend std::int32_t common_prefix(TextView a, TextView b);
  friend bool operator==(TextView a, TextView b) { return a.size() == b.size() && first_other(a, b) == a.size(); }
  /// An order in which texts that begin alike are neighbours.
  friend bool operator<(TextView a, TextView b);

 private:
  friend class Text;
  TextView(std::span<const std::int32_t> bits, std::span<const MediumSpan> spans, std::int32_t base)
      : bits_(bits), spans_(spans), base_(base) {}
  static std::size_t first_other(TextView a, TextView b);
  /// Calls f(span) for each of spans(). Takes no memory.
  template <class F>
  void for_each_span(F&& f) const;
  std::size_t first_other_medium(TextView b, std::size_t n) const;
  /// The span with this symbol, as the text has it. REQUIRES: it is a piece of a medium.
  const MediumSpan& span_at(std::size_t i) const;

  std::span<const std::int32_t> bits_;
  std::span<const MediumSpan> spans_;  // all of the text, `first` counted from that one's beginning
  std::int32_t base_ = 0;              // symbols of the text before this part
};

/// A text of its own. What throws (std::bad_alloc) leaves it as it was.
class Text {
 public:
  Text() = default;
  /// A list of tokens converts to a text. REQUIRES: none is negative.
  Text(std::vector<Token> tokens);  // NOLINT(google-explicit-constructor)
  explicit Text(TextView text) { append(text); }
  /// Of what bits() and spans() gave. None: invariant 1 doesn't hold of it.
  static std::optional<Text> of(std::vector<std::int32_t> bits, std::span<const MediumSpan> spans);

  /// REQUIRES: `more` is no part of this text.
  void append(TextView more);
  /// All rows of the medium. REQUIRES: rows > 0.
  void append(const Medium& medium);
  void truncate(std::size_t n);  ///< REQUIRES: n <= size(). Throws nothing
  void clear() { truncate(0); }

  /// Room for more: then appending as much throws nothing.
  void make_room(std::size_t symbols, std::size_t spans);

  std::size_t size() const { return bits_.size(); }
  bool empty() const { return bits_.empty(); }
  Symbol operator[](std::size_t i) const { return bits_[i]; }
  TextView view() const { return {bits_, spans_, 0}; }
  operator TextView() const { return view(); }  // NOLINT(google-explicit-constructor)
  std::span<const MediumSpan> spans() const { return spans_; }
  friend bool operator==(const Text& a, const Text& b) { return a.view() == b.view(); }
  /// Of memory.
  std::size_t bytes() const { return bits_.size() * sizeof(std::int32_t) + spans_.size() * sizeof(MediumSpan); }

 private:
  void append_span(const MediumSpan& span);

  std::vector<std::int32_t> bits_;
  std::vector<MediumSpan> spans_;
};

inline std::size_t TextView::first_other(TextView a, TextView b) {
  constexpr std::size_t kRun = 64;
  const std::size_t n = std::min(a.size(), b.size());
  std::size_t i = 0;
  while (i + kRun <= n && std::memcmp(&a.bits_[i], &b.bits_[i], kRun * sizeof(std::int32_t)) == 0) i += kRun;
  while (i < n && a.bits_[i] == b.bits_[i]) ++i;
  return a.spans_.empty() || b.spans_.empty() ? i : a.first_other_medium(b, i);
}

inline std::int32_t common_prefix(TextView a, TextView b) {
  return static_cast<std::int32_t>(TextView::first_other(a, b));
}

}  // namespace coppice::kv
