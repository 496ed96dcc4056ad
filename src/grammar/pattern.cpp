// XGrammar's private headers: its public ones build no automaton of a regex between a string's quotes, and don't
// intersect two.
#include "grammar/pattern.h"

#include <grammar_functor.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "grammar/source.h"
#include "grammar/source_check.h"
#include "grammar/xgrammar_log.h"

namespace coppice::grammar {

namespace {

constexpr int kMaxOverlapStates = 20000;

bool matches_nothing(const xgrammar::FSMWithStartEnd& fsm) {
  std::unordered_set<int> reachable;
  fsm.GetReachableStates(&reachable);
  return std::ranges::none_of(reachable, [&](int state) { return fsm.IsEndState(state); });
}

xgrammar::FSMWithStartEnd build(const std::string& regex) {
  check_size(regex, kMaxRegexBytes, Kind::kRegex);
  // XGrammar has another way for the rest, which forgets that a quote ends the string.
  if (!std::ranges::all_of(regex, [](char c) { return c >= 0x20 && c <= 0x7e; }))
    throw GrammarError("it has characters beyond ASCII: write them as \\u escapes");
  const Warnings warnings;
  auto built = xgrammar::GrammarFSMBuilder::Regex(regex, true);
  if (built.IsErr()) throw GrammarError(reason_of(std::move(built).UnwrapErr()));
  if (!warnings.first().empty()) throw GrammarError(warnings.first());
  auto fsm = std::move(built).Unwrap();
  if (matches_nothing(fsm))
    throw GrammarError("no string matches it without a quote, a backslash or a control character");
  return fsm;
}

}  // namespace

struct JsonPattern::Impl {
  xgrammar::FSMWithStartEnd fsm;
};

JsonPattern::JsonPattern(const std::string& regex) : impl_(std::make_unique<const Impl>(Impl{build(regex)})) {}
JsonPattern::~JsonPattern() = default;
JsonPattern::JsonPattern(JsonPattern&& other) noexcept = default;

bool JsonPattern::matches(std::string_view text) const {
  return impl_->fsm.AcceptString(std::string(text));
}

bool JsonPattern::overlaps(const JsonPattern& other) const {
  auto both = xgrammar::FSMWithStartEnd::Intersect(impl_->fsm, other.impl_->fsm, kMaxOverlapStates);
  return both.IsErr() || !matches_nothing(std::move(both).Unwrap());
}

}  // namespace coppice::grammar
