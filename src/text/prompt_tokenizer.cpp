#include "text/prompt_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace coppice::text {

namespace {

bool is_letter(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
}

/// May text be cut before text[at]? Between a word and the space before the next one.
bool is_cut(std::string_view text, std::size_t at) {
  return at > 0 && at + 1 < text.size() && is_letter(text[at - 1]) && text[at] == ' ' && is_letter(text[at + 1]);
}

/// The first cut at `from` or later; the end if there is none.
std::size_t next_cut(std::string_view text, std::size_t from) {
  while (from < text.size() && !is_cut(text, from)) ++from;
  return std::min(from, text.size());
}

std::string key_of(std::string_view salt, std::string_view text) {
  return fmt::format("{}:{}{}", salt.size(), salt, text);
}

/// Of everything that vocabularies split text by: cases, contractions, digits, marks, white space, other scripts.
constexpr std::string_view kSample =
    "The quick brown fox doesn't jump over THE lazy dogs' 12345 bones; she'll say: \"I'm sure it's 3.14 or 2,718\" and "
    "leave   three spaces  or two\tand tabs \n\nnew lines \n then camelCase snake_case words/with/slashes or a-b-c "
    "x+y z = f(x) { return i; } // a comment é über naïve 你好 world and русский текст too even   \n  emoji 🙂 at the "
    "end of it all ";

}  // namespace

PromptTokenizer::PromptTokenizer(std::shared_ptr<const Vocabulary> vocabulary, std::size_t budget_bytes)
    : vocabulary_(std::move(vocabulary)), budget_bytes_(budget_bytes), cuts_(find_out_whether_it_cuts()) {}

/// Merges never reach across a cut if no token does. How text is split into words before that is a matter of each
/// vocabulary: tried out.
bool PromptTokenizer::find_out_whether_it_cuts() const {
  const Vocabulary& v = *vocabulary_;
  if (!v.is_byte_pairs()) return false;
  for (kv::Token token = 0; token < v.size(); ++token) {
    const std::string piece = v.piece(token);
    for (std::size_t i = 1; i < piece.size(); ++i) {
      if (is_letter(piece[i - 1]) && piece[i] == ' ') return false;
    }
  }
  std::vector<kv::Token> whole;
  v.append_plain(kSample, whole);
  for (std::size_t at = 0; (at = next_cut(kSample, at + 1)) < kSample.size();) {
    std::vector<kv::Token> parts;
    v.append_plain(kSample.substr(0, at), parts);
    v.append_plain(kSample.substr(at), parts);
    if (parts != whole) return false;
  }
  return true;
}

std::vector<kv::Token> PromptTokenizer::tokenize(const MarkedView& text, std::string_view salt, std::size_t most) {
  return vocabulary_->tokenize(text, true, true, most, [&](std::string_view plain, std::vector<kv::Token>& tokens) {
    append(plain, salt, most, tokens);
  });
}

void PromptTokenizer::append(std::string_view text, std::string_view salt, std::size_t most,
                             std::vector<kv::Token>& tokens) {
  while (cuts_ && text.size() > kPieceBytes && tokens.size() <= most) {
    const std::size_t end = next_cut(text, kPieceBytes);
    if (end > 2 * kPieceBytes) break;  // hardly prose
    std::string key = key_of(salt, text.substr(0, end));
    if (!append_known(key, tokens)) {
      const std::size_t old = tokens.size();
      vocabulary_->append_plain(text.substr(0, end), tokens);
      remember(std::move(key), {tokens.begin() + static_cast<std::ptrdiff_t>(old), tokens.end()});
    }
    text.remove_prefix(end);
  }
  if (tokens.size() <= most) vocabulary_->append_plain(text, tokens, most);
}

bool PromptTokenizer::append_known(const std::string& key, std::vector<kv::Token>& tokens) {
  const std::scoped_lock lock(mutex_);
  const auto piece = pieces_.find(key);
  ++(piece == pieces_.end() ? counts_.misses : counts_.hits);
  if (piece == pieces_.end()) return false;
  tokens.insert(tokens.end(), piece->second.tokens.begin(), piece->second.tokens.end());
  uses_.splice(uses_.begin(), uses_, piece->second.use);
  return true;
}

void PromptTokenizer::remember(std::string key, std::vector<kv::Token> tokens) {
  constexpr std::size_t kNodes = 192;  // what the tree and the list take for each
  const std::size_t bytes = key.size() + tokens.size() * sizeof(kv::Token) + kNodes;
  if (bytes > budget_bytes_) return;
  const std::scoped_lock lock(mutex_);
  while (counts_.bytes + bytes > budget_bytes_) {
    const auto oldest = pieces_.find(*uses_.back());
    counts_.bytes -= oldest->second.bytes;
    uses_.pop_back();
    pieces_.erase(oldest);
  }
  std::list<const std::string*> use(1);  // its memory first: the tree and the list must not differ
  const auto [piece, fresh] = pieces_.try_emplace(std::move(key));
  if (!fresh) return;  // another thread was faster
  use.front() = &piece->first;
  uses_.splice(uses_.begin(), use);
  piece->second = {std::move(tokens), uses_.begin(), bytes};
  counts_.bytes += bytes;
}

PromptTokenizer::Counts PromptTokenizer::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

}  // namespace coppice::text
