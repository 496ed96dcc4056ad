#include "attention/cpu/amx_scratch.h"

#include <algorithm>
#include <type_traits>

namespace coppice::attention {

AmxScratch::AmxScratch(const HeadShape& heads) : steps_((heads.head_dim + kStep - 1) / kStep) {
  const auto dim = static_cast<std::size_t>(padded());
  constexpr std::size_t kQueries = kMaxColumns * kColumn, kColumns = std::size_t{kTogether} * kColumn;
  const auto zeros = [](auto& to, std::size_t n) {
    using T = std::remove_reference_t<decltype(to[0])>;
    to = hwy::AllocateAligned<T>(n);
    std::fill_n(to.get(), n, T{0});
  };
  zeros(queries_, kQueries * dim * kParts);
  zeros(keys_, kStretch * dim * kParts);
  zeros(values_, kStretch * dim * kParts);
  zeros(weights_, kStretch * kColumns * kParts);
  zeros(scores_, kStretch * kColumns);
  zeros(sums_, dim * kColumns);
  zeros(query_, kColumn * dim);
  zeros(acc_, kQueries * dim);
}

}  // namespace coppice::attention
