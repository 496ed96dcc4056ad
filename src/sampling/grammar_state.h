// GrammarState: where a sample stands in its grammar, or that it hasn't begun yet.
//
// Not thread safe. The matcher is made at the first token: thousands of samples may wait.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "grammar/matcher.h"
#include "kv/types.h"
#include "sampling/params.h"
#include "text/vocabulary.h"

namespace coppice::sampling {

class GrammarState {
 public:
  /// `params` outlives this.
  explicit GrammarState(const GrammarParams& params) : params_(params) {}

  /// Of the next token; empty: all are allowed.
  std::span<const std::int32_t> mask() {
    if (!matcher_ && (params_.after.empty() || may_open_)) begin();
    if (!matcher_) return {};
    return may_open_ ? with_opening(matcher_->mask()) : matcher_->mask();
  }

  /// False: the token may not come next.
  bool accept(kv::Token token, const text::Vocabulary& vocabulary) {
    if (std::exchange(may_open_, false) && token == params_.opens) matcher_.reset();
    if (matcher_) return matcher_->accept(token);
    // What must come first is looked for in the bytes, special tokens' names among them.
    const std::size_t seen = before_.size();
    before_ += vocabulary.piece(token, true);
    const std::size_t from = seen - std::min(seen, params_.after.size() - 1);
    const std::size_t at = before_.find(params_.after, from);
    if (at != std::string::npos) {
      begin();
      // A token may bring the first characters of the text, too. If the grammar can't begin like that, it begins behind them.
      const std::string_view rest = std::string_view(before_).substr(at + params_.after.size());
      if (!rest.empty()) matcher_->accept_text(rest);
      before_ = {};
    } else if (before_.size() > 2 * params_.after.size()) {
      before_.erase(0, before_.size() - params_.after.size());
    }
    return true;
  }

  bool whole() const { return matcher_ && matcher_->whole(); }

 private:
  /// The grammar's first tokens, and the one that puts it off.
  std::span<const std::int32_t> with_opening(std::span<const std::int32_t> mask) {
    first_.assign(mask.begin(), mask.end());
    const auto token = static_cast<std::size_t>(params_.opens);
    if (token / 32 < first_.size()) first_[token / 32] |= static_cast<std::int32_t>(1U << token % 32);
    return first_;
  }

  void begin() {
    matcher_.emplace(params_.grammar);
    if (!params_.begun.empty()) matcher_->accept_text(params_.begun);
  }

  const GrammarParams& params_;
  bool may_open_ = params_.opens >= 0;  ///< the first token is to come
  std::vector<std::int32_t> first_;     ///< its mask
  std::string before_;                  ///< the end of the text before the grammar
  std::optional<grammar::Matcher> matcher_;
};

}  // namespace coppice::sampling
