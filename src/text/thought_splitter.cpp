#include "text/thought_splitter.h"

#include <algorithm>
#include <utility>

namespace coppice::text {

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::size_t leading_blanks(std::string_view text) {
  return std::min(text.find_first_not_of(kBlanks), text.size());
}

std::size_t size_without_last_blanks(std::string_view text) {
  const std::size_t last = text.find_last_not_of(kBlanks);
  return last == std::string_view::npos ? 0 : last + 1;
}

/// Of the beginning of the tag with which the text ends.
std::size_t begun_size(std::string_view text, std::string_view tag) {
  std::size_t n = std::min(tag.size() - 1, text.size());
  while (!text.ends_with(tag.substr(0, n))) --n;
  return n;
}

}  // namespace

AnswerParts ThoughtSplitter::push(std::string_view text) {
  AnswerParts parts;
  if (phase_ == Phase::kContent) {
    parts.content = text;
    return parts;
  }
  held_ += text;
  while (step(parts)) {
  }
  return parts;
}

AnswerParts ThoughtSplitter::finish() {
  AnswerParts parts;
  (phase_ == Phase::kThinking ? parts.reasoning : parts.content) = std::exchange(held_, {});
  return parts;
}

bool ThoughtSplitter::step(AnswerParts& parts) {
  switch (phase_) {
    case Phase::kBefore:
      return begin();
    case Phase::kThinking:
      return think(parts);
    case Phase::kAfter:
      held_.erase(0, leading_blanks(held_));
      if (held_.empty()) return false;
      phase_ = Phase::kContent;
      return true;
    case Phase::kContent:
      parts.content += std::exchange(held_, {});
      return false;
  }
  return false;
}

bool ThoughtSplitter::begin() {
  const std::string_view text = std::string_view(held_).substr(leading_blanks(held_));
  if (text.starts_with(tags_.begin)) {
    held_.erase(0, held_.size() - text.size() + tags_.begin.size());
    phase_ = Phase::kThinking;
    return true;
  }
  if (std::string_view(tags_.begin).starts_with(text)) return false;
  phase_ = Phase::kContent;
  return true;
}

bool ThoughtSplitter::think(AnswerParts& parts) {
  if (!said_) held_.erase(0, leading_blanks(held_));
  const std::size_t end = held_.find(tags_.end);
  const std::size_t certain = end == std::string::npos ? held_.size() - begun_size(held_, tags_.end) : end;
  const std::size_t size = size_without_last_blanks(std::string_view(held_).substr(0, certain));
  parts.reasoning.append(held_, 0, size);
  said_ = said_ || size > 0;
  if (end == std::string::npos) {
    held_.erase(0, size);
    return false;
  }
  held_.erase(0, end + tags_.end.size());
  phase_ = Phase::kAfter;
  return true;
}

}  // namespace coppice::text
