#include "sampling/grammar_state.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "grammar/work.h"

namespace coppice::sampling {

GrammarState::~GrammarState() {
  if (work_) work_->give_up();
}

/// `work` changes the place, and the next mask is made behind it.
void GrammarState::start(std::function<void(Position&)> work) {
  if (work_) work_->wait();
  was_quick_ = position_->quick;
  position_->known = false;
  const auto run = [position = position_, work = std::move(work)] {
    if (position->error) return;
    try {
      const double start = grammar::cpu_seconds();
      work(*position);
      const auto mask = position->matcher->mask();
      position->mask.assign(mask.begin(), mask.end());
      position->quick = grammar::cpu_seconds() - start < kQuickSeconds;
    } catch (...) {
      position->error = std::current_exception();
    }
    position->known = true;
  };
  work_ = std::make_shared<MaskWork>(run);
  if (pool_) pool_->push(params_.payer, was_quick_, work_);
}

void GrammarState::begin(std::string rest) {
  began_ = true;
  start([grammar = params_.grammar, begun = params_.begun, rest = std::move(rest)](Position& position) {
    position.matcher.emplace(grammar);
    if (!begun.empty()) position.matcher->accept_text(begun);
    // If the grammar can't begin like that, it begins behind it.
    if (!rest.empty()) position.matcher->accept_text(rest);
  });
}

void GrammarState::prepare() {
  if (!began_ && (params_.after.empty() || may_open_)) begin({});
}

bool GrammarState::ready() {
  prepare();
  return !work_ || work_->done() || !pool_;
}

std::span<const std::int32_t> GrammarState::mask() {
  prepare();
  if (!began_) return {};
  work_->wait();
  if (position_->error) std::rethrow_exception(position_->error);
  return may_open_ ? with_opening(position_->mask) : position_->mask;
}

bool GrammarState::accept(kv::Token token, const text::Vocabulary& vocabulary) {
  if (std::exchange(may_open_, false) && token == params_.opens) {
    if (work_) work_->wait();
    position_->matcher.reset();
    began_ = false;
  }
  if (began_) {
    if (work_) work_->wait();
    const auto word = static_cast<std::size_t>(token) / 32;
    const std::vector<std::int32_t>& mask = position_->mask;
    const bool allowed =
        mask.empty() || (word < mask.size() && (static_cast<std::uint32_t>(mask[word]) >> (token % 32) & 1U) != 0);
    if (position_->error) std::rethrow_exception(position_->error);
    if (!allowed) return false;
    start([token](Position& position) {
      if (!position.matcher->accept(token)) throw grammar::GrammarError("the grammar refuses a token that it allowed");
    });
    return true;
  }
  // What must come first is looked for in the bytes, special tokens' names among them.
  before_ += vocabulary.piece(token, true);
  if (!behind_passage()) return true;
  const std::size_t at = before_.find(params_.after);
  if (at != std::string::npos) {
    // A token may bring the first characters of the text, too.
    begin(before_.substr(at + params_.after.size()));
    before_ = {};
  } else if (before_.size() > 2 * params_.after.size()) {
    before_.erase(0, before_.size() - params_.after.size());
  }
  return true;
}

/// Takes what the answer may begin with off the text. False: it has not ended, or may be about to begin.
bool GrammarState::behind_passage() {
  if (past_passage_) return true;
  const auto& [begin, end, open] = params_.skipped;
  if (!in_passage_) {
    const std::size_t first = std::min(before_.find_first_not_of(" \n\r\t"), before_.size());
    const std::string_view text = std::string_view(before_).substr(first);
    if (text.size() < begin.size() && begin.starts_with(text)) return false;
    in_passage_ = text.starts_with(begin);
    past_passage_ = !in_passage_;
    if (past_passage_) return true;
    before_.erase(0, first + begin.size());
  }
  const std::size_t at = before_.find(end);
  past_passage_ = at != std::string::npos;
  before_.erase(0, past_passage_ ? at + end.size() : before_.size() - std::min(before_.size(), end.size() - 1));
  return past_passage_;
}

/// The grammar's first tokens, and the one that puts it off.
std::span<const std::int32_t> GrammarState::with_opening(std::span<const std::int32_t> mask) {
  first_.assign(mask.begin(), mask.end());
  const auto token = static_cast<std::size_t>(params_.opens);
  if (token / 32 < first_.size()) first_[token / 32] |= static_cast<std::int32_t>(1U << token % 32);
  return first_;
}

}  // namespace coppice::sampling
