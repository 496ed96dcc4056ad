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

sampling::Piece FakeGeneration::next(std::span<float> logits) {
  if (n_tokens_ == throw_at_ && throw_bad_alloc_) throw std::bad_alloc();
  if (n_tokens_ == throw_at_) throw std::runtime_error("the fake generation was told to fail");
  sampling::Piece piece{.token = fake_token(read_hash(logits), seed_, n_tokens_++)};
  std::ranges::fill(logits, -1.0f);
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
