// Anthropic's `cache_control`: which beginnings of a prompt shall stay cached, and what came of that.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "server/api/base/json.h"
#include "server/api/base/json_fields.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

/// The places that a request marks, as they are read.
class PinMarks {
 public:
  explicit PinMarks(std::vector<PinMark>& marks) : marks_(marks) {}
  /// `place`: where what `f` belongs to ends; without `messages`: in a message whose number place() tells. Throws
  /// RequestError.
  void look(const JsonFields& f, PinMark place);
  std::size_t size() const { return marks_.size(); }
  /// Those since the first `from` are in the last of so many messages. `behind`: at its end.
  void place(std::size_t from, std::size_t messages, bool behind = false);

 private:
  static constexpr std::size_t kMost = 4;  ///< as Anthropic: for each the template is rendered once more
  std::vector<PinMark>& marks_;
};

/// The kinds of a prompt's tokens. Those that were found are read; of the rest, those before the last pin are created,
/// each with the time to live of the first pin behind it.
struct CacheCreation {
  int five_minutes = 0, one_hour = 0;
  int tokens() const { return five_minutes + one_hour; }
};
CacheCreation cache_creation(std::span<const engine::PinOutcome> pins, int cached_tokens);

}  // namespace coppice::server
