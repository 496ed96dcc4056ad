#include "support/fake_generation.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "support/fake_executor.h"

namespace coppice::testing {

kv::Token fake_token(std::uint64_t logits_hash, std::uint64_t seed, int n_before) {
  return static_cast<kv::Token>(mix(mix(logits_hash, seed), static_cast<std::uint64_t>(n_before)) % 1000);
}

std::string fake_text(kv::Token token) {
  return std::to_string(token) + " ";
}

float fake_logprob(std::uint64_t logits_hash, kv::Token next) {
  return static_cast<float>(mix(logits_hash, static_cast<std::uint64_t>(next)) >> 40) / (1 << 24);
}

std::int32_t fake_rank(std::uint64_t logits_hash, kv::Token next) {
  return 1 + static_cast<std::int32_t>(mix(logits_hash + 1, static_cast<std::uint64_t>(next)) % 1000);
}

sampling::PromptToken FakeScorer::score(std::span<const float> logits, kv::Token next, int n_top) {
  const std::uint64_t hash = read_hash(logits);
  sampling::PromptToken scored = name(next);
  scored.entry.chosen.logprob = fake_logprob(hash, next);
  scored.rank = fake_rank(hash, next);
  for (kv::Token other = next - 1; other >= next - n_top; --other)
    scored.entry.top.push_back({other, fake_text(other), fake_logprob(hash, other)});
  return scored;
}

sampling::PromptToken FakeScorer::name(kv::Token token) {
  return {.entry = {.chosen = {.token = token, .bytes = fake_text(token)}}};
}

void FakeGeneration::throw_if_told() const {
  if (n_tokens_ == throw_at_ && throw_bad_alloc_) throw std::bad_alloc();
  if (n_tokens_ == throw_at_ && unsatisfiable_) throw sampling::Unsatisfiable("no token is allowed");
  if (n_tokens_ == throw_at_) throw std::runtime_error("the fake generation was told to fail");
}

bool FakeGeneration::ready() {
  return asked_++ >= late_;
}

sampling::Piece FakeGeneration::next(std::span<float> logits) {
  const kv::Token token = fake_token(read_hash(logits), seed_, n_tokens_);
  std::ranges::fill(logits, -1.0f);
  return take(token, logits);
}

sampling::SamplerSpec FakeGeneration::spec() {
  return {.seed = seed_, .counter = static_cast<std::uint64_t>(n_tokens_)};
}

sampling::Piece FakeGeneration::take(kv::Token token, std::span<const float> /*logits*/) {
  throw_if_told();
  ++n_tokens_;
  asked_ = 0;
  sampling::Piece piece{.token = token};
  piece.text = std::exchange(held_, fake_text(piece.token));
  if (n_tokens_ == stop_after_) {
    piece.text += std::exchange(held_, {});
    piece.finish = sampling::Finish::kStop;
  }
  return piece;
}

sampling::Piece FakeGeneration::flush() {
  if (flush_fails_) throw std::runtime_error("the fake generation was told to fail");
  return {.token = -1, .text = std::exchange(held_, {})};
}

}  // namespace coppice::testing
