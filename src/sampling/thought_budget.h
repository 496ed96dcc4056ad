// ThoughtBudget: bounds what one sample thinks before its answer. When so many tokens of thoughts are drawn, the end of
// thoughts follows, token by token, whatever the logits say; what comes behind it is the model's again. Where it would
// begin to think again there, it has the choice between some ways (ThoughtParams::ways) first.
//
// Not thread safe. A model may leave thoughts out: then nothing is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/types.h"
#include "sampling/params.h"

namespace coppice::sampling {

class ThoughtBudget {
 public:
  /// `params` outlives this.
  explicit ThoughtBudget(const ThoughtParams& params);

  /// What the next token has to be; none: it may be any.
  std::optional<kv::Token> forced() const {
    return phase_ == Phase::kClosing ? std::optional(end()[closed_]) : std::nullopt;
  }

  /// The next token has to be one of these; empty: it may be any, or forced() says which.
  std::vector<kv::Token> choice() const;

  /// A token was drawn, or the forced one was taken. bytes: its text, also of a special one. whole: no character is cut
  /// in two behind it.
  void take(kv::Token token, std::string_view bytes, bool whole);

 private:
  enum class Phase : std::uint8_t { kBefore, kThinking, kClosing, kChoosing, kDone };
  const std::vector<kv::Token>& end() const { return was_closed_ ? params_.last : params_.close; }
  void look_for_begin();
  void begin(std::string_view rest);
  void look_for_end();
  void close();
  void choose(kv::Token token);
  void over();

  const ThoughtParams& params_;
  Phase phase_;
  std::int32_t used_ = 0;                            ///< tokens of thoughts
  std::size_t closed_ = 0;                           ///< tokens of the end that are out
  std::vector<const std::vector<kv::Token>*> ways_;  ///< that go on as the text
  std::size_t on_way_ = 0;                           ///< tokens of these that are out
  bool was_closed_ = false;                          ///< once, to the last token
  /// Before thoughts all of it, or what may be a part of their beginning; then what may be a part of their end.
  std::string text_;
};

}  // namespace coppice::sampling
