#include "text/prompt_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "port/turn.h"

namespace coppice::text {

namespace {

/// `buffer`: for the bytes that are hashed. The salt's length comes first: "a" and "bc" are not "ab" and "c".
kv::Digest key_of(std::string_view salt, std::string_view text, std::string& buffer) {
  const std::uint64_t n = salt.size();
  buffer.assign(reinterpret_cast<const char*>(&n), sizeof n);
  buffer.append(salt).append(text);
  return kv::sha256(std::as_bytes(std::span(buffer)));
}

}  // namespace

PromptTokenizer::PromptTokenizer(std::shared_ptr<const Vocabulary> vocabulary, std::size_t budget_bytes)
    : vocabulary_(std::move(vocabulary)), budget_bytes_(budget_bytes), cuts_(*vocabulary_) {}

std::vector<kv::Token> PromptTokenizer::tokenize(const MarkedView& text, std::string_view salt, std::size_t most,
                                                 const std::string& payer) {
  return vocabulary_->tokenize(text, true, true, most, [&](std::string_view plain, std::vector<kv::Token>& tokens) {
    append(plain, {salt, payer}, most, tokens);
  });
}

void PromptTokenizer::append(std::string_view text, const Asker& asker, std::size_t most,
                             std::vector<kv::Token>& tokens) {
  std::string buffer;
  while (cuts() && !text.empty() && tokens.size() <= most) {
    port::between_steps();
    const std::size_t end = cuts_.next(text, kPieceBytes);
    if (end > kLongestPiece) break;
    const Key key = key_of(asker.salt, text.substr(0, end), buffer);
    if (!append_known(key, tokens)) {
      const std::size_t old = tokens.size();
      vocabulary_->append_plain(text.substr(0, end), tokens);
      remember(key, {tokens.begin() + static_cast<std::ptrdiff_t>(old), tokens.end()}, asker.payer);
    }
    text.remove_prefix(end);
  }
  if (tokens.size() <= most) vocabulary_->append_plain(text, tokens, most);
}

bool PromptTokenizer::append_known(const Key& key, std::vector<kv::Token>& tokens) {
  const check::Lock lock(mutex_);
  const auto piece = pieces_.find(key);
  ++(piece == pieces_.end() ? counts_.misses : counts_.hits);
  if (piece == pieces_.end()) return false;
  tokens.insert(tokens.end(), piece->second.tokens.begin(), piece->second.tokens.end());
  std::list<const Key*>& uses = piece->second.payer->second.uses;
  uses.splice(uses.begin(), uses, piece->second.use);
  return true;
}

void PromptTokenizer::remember(const Key& key, std::vector<kv::Token> tokens, const std::string& payer) {
  constexpr std::size_t kNodes = 224;  // what the table and the list take for each
  const std::size_t bytes = tokens.size() * sizeof(kv::Token) + kNodes;
  if (bytes > budget_bytes_) return;
  const check::Lock lock(mutex_);
  while (counts_.bytes + bytes > budget_bytes_) forget_one();
  std::list<const Key*> use(1);  // its memory first: the table and the lists must not differ
  Payers own;
  own.try_emplace(payer);
  const auto [piece, fresh] = pieces_.try_emplace(key);
  if (!fresh) return;  // another thread was faster
  payers_.merge(own);
  const auto holder = payers_.find(payer);
  use.front() = &piece->first;
  std::list<const Key*>& uses = holder->second.uses;
  uses.splice(uses.begin(), use);
  piece->second = {std::move(tokens), holder, uses.begin(), bytes};
  holder->second.bytes += bytes;
  counts_.bytes += bytes;
}

/// REQUIRES: there is one.
void PromptTokenizer::forget_one() {
  const auto most = std::ranges::max_element(payers_, {}, [](const auto& entry) { return entry.second.bytes; });
  const auto oldest = pieces_.find(*most->second.uses.back());
  counts_.bytes -= oldest->second.bytes;
  most->second.bytes -= oldest->second.bytes;
  most->second.uses.pop_back();
  pieces_.erase(oldest);
  if (most->second.uses.empty()) payers_.erase(most);
}

PromptTokenizer::Counts PromptTokenizer::counts() const {
  const check::Lock lock(mutex_);
  return counts_;
}

}  // namespace coppice::text
