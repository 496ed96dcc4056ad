#include "grammar/matcher.h"

#include <xgrammar/matcher.h>

#include <string>
#include <utility>
#include <vector>

#include "grammar/impl.h"

namespace coppice::grammar {

struct Matcher::Impl {
  std::shared_ptr<const Grammar> grammar;
  xgrammar::GrammarMatcher matcher;
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
  if (!impl_->matcher.FillNextTokenBitmask(&tensor)) return {};
  return words;
}

bool Matcher::accept(kv::Token token) {
  return !impl_->matcher.IsTerminated() && impl_->matcher.AcceptToken(token);
}

bool Matcher::accept_text(std::string_view text) {
  return !impl_->matcher.IsTerminated() && impl_->matcher.AcceptString(std::string(text));
}

bool Matcher::whole() const {
  return impl_->matcher.IsCompleted();
}

Matcher Matcher::clone() const {
  return Matcher(std::make_unique<Impl>(Impl{impl_->grammar, impl_->matcher.Fork()}));
}

}  // namespace coppice::grammar
