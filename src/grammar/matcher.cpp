#include "grammar/matcher.h"

#include <xgrammar/matcher.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "grammar/impl.h"
#include "grammar/work.h"

namespace coppice::grammar {

namespace {

// What a text may cost: JSON takes microseconds a token. The parser keeps all ways to read a text, so that an ambiguous
// grammar (root ::= root root | "a") takes the square of the text's length for each byte more.
constexpr double kSeconds = 0.5, kSecondsPerToken = 0.001, kSecondsAtOnce = 0.1;

}  // namespace

struct Matcher::Impl {
  std::shared_ptr<const Grammar> grammar;
  xgrammar::GrammarMatcher matcher;
  double spent = 0;  ///< seconds of CPU time
  int n_tokens = 0;

  auto timed(auto&& f) {
    try {
      const double start = cpu_seconds(), left = kSeconds + kSecondsPerToken * n_tokens - spent;
      const WorkLimit limit(std::min(left, kSecondsAtOnce));
      auto result = f();
      spent += cpu_seconds() - start;
      return result;
    } catch (const WorkError&) {
      throw GrammarError("the grammar is too ambiguous: to follow it takes too long");
    }
  }
};

Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) {
  xgrammar::GrammarMatcher matcher(grammar->impl().compiled);
  impl_ = std::make_unique<Impl>(Impl{std::move(grammar), std::move(matcher)});
}

Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&& other) noexcept = default;
Matcher& Matcher::operator=(Matcher&& other) noexcept = default;

std::span<const std::int32_t> Matcher::mask() {
  thread_local std::vector<std::int32_t> words;
  std::int64_t n_words = xgrammar::GetBitmaskSize(impl_->grammar->impl().n_vocab);
  words.resize(static_cast<std::size_t>(n_words));
  DLTensor tensor{.data = words.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &n_words,
                  .strides = nullptr,
                  .byte_offset = 0};
  if (!impl_->timed([&] { return impl_->matcher.FillNextTokenBitmask(&tensor); })) return {};
  return words;
}

bool Matcher::accept(kv::Token token) {
  ++impl_->n_tokens;
  return !impl_->matcher.IsTerminated() && impl_->timed([&] { return impl_->matcher.AcceptToken(token); });
}

bool Matcher::accept_text(std::string_view text) {
  return !impl_->matcher.IsTerminated() && impl_->timed([&] { return impl_->matcher.AcceptString(std::string(text)); });
}

bool Matcher::whole() const {
  return impl_->matcher.IsCompleted();
}

Matcher Matcher::clone() const {
  return Matcher(std::make_unique<Impl>(Impl{impl_->grammar, impl_->matcher.Fork(), impl_->spent, impl_->n_tokens}));
}

}  // namespace coppice::grammar
