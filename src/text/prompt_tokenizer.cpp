#include "text/prompt_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "port/turn.h"

namespace coppice::text {

namespace {

std::string key_of(std::string_view salt, std::string_view text) {
  return fmt::format("{}:{}{}", salt.size(), salt, text);
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
  while (cuts() && text.size() >= kLeastPiece && tokens.size() <= most) {
    port::between_steps();
    const std::size_t end = cuts_.next(text, kPieceBytes);
    if (end > kLongestPiece) break;
    std::string key = key_of(asker.salt, text.substr(0, end));
    if (!append_known(key, tokens)) {
      const std::size_t old = tokens.size();
      vocabulary_->append_plain(text.substr(0, end), tokens);
      remember(std::move(key), {tokens.begin() + static_cast<std::ptrdiff_t>(old), tokens.end()}, asker.payer);
    }
    text.remove_prefix(end);
  }
  if (tokens.size() <= most) vocabulary_->append_plain(text, tokens, most);
}

bool PromptTokenizer::append_known(const std::string& key, std::vector<kv::Token>& tokens) {
  const check::Lock lock(mutex_);
  const auto piece = pieces_.find(key);
  ++(piece == pieces_.end() ? counts_.misses : counts_.hits);
  if (piece == pieces_.end()) return false;
  tokens.insert(tokens.end(), piece->second.tokens.begin(), piece->second.tokens.end());
  std::list<const std::string*>& uses = piece->second.payer->second.uses;
  uses.splice(uses.begin(), uses, piece->second.use);
  return true;
}

void PromptTokenizer::remember(std::string key, std::vector<kv::Token> tokens, const std::string& payer) {
  constexpr std::size_t kNodes = 192;  // what the tree and the list take for each
  const std::size_t bytes = key.size() + tokens.size() * sizeof(kv::Token) + kNodes;
  if (bytes > budget_bytes_) return;
  const check::Lock lock(mutex_);
  while (counts_.bytes + bytes > budget_bytes_) forget_one();
  std::list<const std::string*> use(1);  // its memory first: the tree and the lists must not differ
  Payers own;
  own.try_emplace(payer);
  const auto [piece, fresh] = pieces_.try_emplace(std::move(key));
  if (!fresh) return;  // another thread was faster
  payers_.merge(own);
  const auto holder = payers_.find(payer);
  use.front() = &piece->first;
  std::list<const std::string*>& uses = holder->second.uses;
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
