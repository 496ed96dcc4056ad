// XGrammar's private headers: its public ones show a grammar's automata only as JSON, and only behind compilation,
// which this is to bound.
#include "grammar/state_count.h"

#include <grammar_impl.h>

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

namespace coppice::grammar {

namespace {

constexpr std::size_t kMany = 64;  // bytes
constexpr int kMostHeads = 64;     // of rules that begin with rules; of() recurses

using Bytes = std::bitset<256>;

/// With which bytes a text may go on.
class FirstBytes {
 public:
  explicit FirstBytes(const xgrammar::Grammar& grammar)
      : grammar_(grammar), rules_(static_cast<std::size_t>(grammar->NumRules())), nullable_(rules_.size()) {
    for (const std::int32_t rule : grammar->allow_empty_rule_ids) nullable_[static_cast<std::size_t>(rule)] = true;
  }

  Bytes of(std::int32_t rule, int state) {
    Bytes bytes;
    const auto& fsm = grammar_->per_rule_fsms[static_cast<std::size_t>(rule)]->GetFsm();
    std::vector<int> open{state};
    std::unordered_set<int> seen{state};
    while (!open.empty()) {
      const int at = open.back();
      open.pop_back();
      for (const auto& edge : fsm.GetFsm().GetEdges(at)) {
        bool passes = edge.IsEpsilon();
        if (edge.IsCharRange()) {
          for (int byte = edge.min; byte <= edge.max; ++byte) bytes.set(static_cast<std::size_t>(byte));
        } else if (edge.IsRuleRef()) {
          bytes |= of(edge.GetRefRuleId());
          passes = nullable_[static_cast<std::size_t>(edge.GetRefRuleId())];
        } else if (edge.IsRepeatRef()) {
          const auto repeat = grammar_->complete_fsm.GetRepeatEdgeInfo(edge.GetAuxIndex());
          bytes |= of(repeat.RuleId());
          passes = repeat.Lower() == 0 || nullable_[static_cast<std::size_t>(repeat.RuleId())];
        } else if (!passes) {
          bytes.set();  // by whole tokens
        }
        if (passes && seen.insert(edge.target).second) open.push_back(edge.target);
      }
    }
    return bytes;
  }

 private:
  Bytes of(std::int32_t rule) {
    auto& known = rules_[static_cast<std::size_t>(rule)];
    if (known) return *known;
    if (depth_ == kMostHeads) return Bytes().set();
    known.emplace();  // a rule that begins with itself
    ++depth_;
    const Bytes bytes = of(rule, grammar_->per_rule_fsms[static_cast<std::size_t>(rule)]->GetFsm().GetStart());
    --depth_;
    known = bytes;
    return bytes;
  }

  const xgrammar::Grammar& grammar_;
  std::vector<std::optional<Bytes>> rules_;
  std::vector<bool> nullable_;
  int depth_ = 0;
};

}  // namespace

StateCount count_states(const xgrammar::Grammar& grammar) {
  StateCount n;
  FirstBytes first(grammar);
  for (std::int32_t rule = 0; rule < grammar->NumRules(); ++rule) {
    const auto& fsm = grammar->per_rule_fsms[static_cast<std::size_t>(rule)];
    if (!fsm) continue;
    std::unordered_set<int> reachable;
    fsm->GetFsm().GetReachableStates(&reachable);
    for (const int state : reachable) {
      if (!fsm->GetFsm().IsScanableState(state)) continue;
      ++n.all;
      n.wide += first.of(rule, state).count() >= kMany ? 1 : 0;
    }
  }
  return n;
}

}  // namespace coppice::grammar
