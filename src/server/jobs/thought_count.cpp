#include "server/jobs/thought_count.h"

#include <algorithm>

namespace coppice::server {

void ThoughtCount::push(std::string_view text, std::size_t tokens) {
  constexpr std::size_t kHead = 256;  // longer than any mark before the reasoning
  if (head_.size() < kHead) head_ += text.substr(0, kHead - head_.size());
  bytes_ += text.size();
  tokens_ += tokens;
  if (!answers_) ends_.push_back({bytes_, tokens_});
}

void ThoughtCount::read(std::string_view reasoning, bool answers) {
  constexpr std::size_t kHead = 16;
  if (thought_head_.size() < kHead) thought_head_ += reasoning.substr(0, kHead - thought_head_.size());
  thought_bytes_ += reasoning.size();
  answers_ |= answers;
}

std::int64_t ThoughtCount::tokens() const {
  if (thought_bytes_ == 0) return 0;
  const std::size_t begin = head_.find(thought_head_);
  const std::size_t end = (begin == head_.npos ? 0 : begin) + thought_bytes_;
  PieceEnd before{0, 0};
  for (const PieceEnd& place : ends_) {
    if (place.bytes >= end) {  // of a piece of several tokens the part that its bytes are
      const std::size_t bytes = std::max(place.bytes - before.bytes, std::size_t{1});
      const std::size_t share = (place.tokens - before.tokens) * (end - before.bytes);
      return static_cast<std::int64_t>(before.tokens + (share + bytes - 1) / bytes);
    }
    before = place;
  }
  return static_cast<std::int64_t>(before.tokens);
}

}  // namespace coppice::server
