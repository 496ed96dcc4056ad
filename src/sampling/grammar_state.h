// GrammarState: where a sample stands in its grammar, or that it hasn't begun yet. With a MaskPool the grammar is
// followed, and the next mask made, by the pool's threads: ready() says when.
//
// Not thread safe. The matcher is made at the first token: thousands of samples may wait.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "grammar/matcher.h"
#include "kv/types.h"
#include "sampling/mask_pool.h"
#include "sampling/params.h"
#include "text/vocabulary.h"

namespace coppice::sampling {

class GrammarState {
 public:
  /// `params` outlives this. A null pool: all is done here.
  GrammarState(const GrammarParams& params, std::shared_ptr<MaskPool> pool)
      : params_(params), pool_(std::move(pool)), position_(std::make_shared<Position>()) {}
  ~GrammarState();
  GrammarState(const GrammarState&) = delete;
  GrammarState& operator=(const GrammarState&) = delete;

  /// Begins to make the next mask.
  void prepare();
  /// mask() has nothing to wait for. Else the pool tells when it is done.
  bool ready();
  /// The masks are expected to be cheap.
  bool quick() const { return !pool_ || (!work_ || work_->done() ? position_->quick : was_quick_); }

  /// Of the next token; empty: all are allowed. Throws GrammarError.
  std::span<const std::int32_t> mask();

  /// False: the token may not come next. Of a token that the last mask allows a pool's thread finds out, and mask()
  /// throws.
  bool accept(kv::Token token, const text::Vocabulary& vocabulary);

  /// The text so far may end. REQUIRES: mask() has been called for the next token.
  bool whole() const { return position_->matcher && position_->matcher->whole(); }

 private:
  /// What works change. It outlives a GrammarState whose work is under way.
  struct Position {
    std::optional<grammar::Matcher> matcher;
    std::vector<std::int32_t> mask;  ///< of the next token
    bool known = false;              ///< `mask` is
    bool quick = false;              ///< to make it took little time
    std::exception_ptr error;
  };

  bool begins() const { return !position_->matcher && (params_.after.empty() || may_open_); }
  void begin(std::string rest);
  void start(std::function<void(Position&)> work);
  bool behind_passage();
  std::span<const std::int32_t> with_opening(std::span<const std::int32_t> mask);

  const GrammarParams& params_;
  std::shared_ptr<MaskPool> pool_;
  std::shared_ptr<Position> position_;  ///< not to be read while a work is under way
  std::shared_ptr<MaskWork> work_;      ///< null: none was started
  bool was_quick_ = false;              ///< before it
  bool began_ = false;                  ///< the grammar holds from here on
  bool may_open_ = params_.opens >= 0;  ///< the first token is to come
  std::vector<std::int32_t> first_;     ///< its mask
  std::string before_;                  ///< the end of the text before the grammar
  bool in_passage_ = params_.skipped.open;
  bool past_passage_ = params_.skipped.end.empty();
};

}  // namespace coppice::sampling
