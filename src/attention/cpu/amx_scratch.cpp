#include "attention/cpu/amx_scratch.h"

#include <algorithm>
#include <type_traits>

namespace coppice::attention {

AmxScratch::AmxScratch(const HeadShape& heads) : steps_((heads.head_dim + kStep - 1) / kStep) {
  const auto dim = static_cast<std::size_t>(padded());
  constexpr std::size_t kQueries = kMaxColumns * kColumn;
  constexpr std::size_t kColumns = std::size_t{2} * kTogether * kColumn, kFewColumns = std::size_t{kFew} * kColumn;
  const auto zeros = [](auto& to, std::size_t n) {
    using T = std::remove_reference_t<decltype(to[0])>;
    to = hwy::AllocateAligned<T>(n);
    std::fill_n(to.get(), n, T{0});
  };
  zeros(queries_, kQueries * dim * kParts);
  zeros(keys_, kStretch * dim * kParts);
  zeros(values_, kStretch * dim * kParts);
  zeros(weights_, kStretch * kFewColumns * kParts);
  zeros(scores_, kStretch * std::max(kColumns, kFewColumns));
  zeros(sums_, dim * kFewColumns);
  zeros(query_, kColumn * dim);
  zeros(acc_, kQueries * dim);
}

}  // namespace coppice::attention
