#include "text/vocabulary.h"

#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "port/turn.h"
#include "text/llama_log.h"

namespace coppice::text {

namespace {

llama_model* load(const std::filesystem::path& gguf) {
  route_llama_log();
  std::error_code error;
  if (!std::filesystem::is_regular_file(gguf, error)) {
    throw VocabularyError(fmt::format("{}: no such file", gguf.string()));
  }
  const LlamaErrorCapture errors;
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  params.n_gpu_layers = 0;
  llama_model* model = llama_model_load_from_file(gguf.c_str(), params);
  if (model == nullptr) {
    throw VocabularyError(fmt::format("{}: {}", gguf.string(), errors.reason("not a readable GGUF file")));
  }
  return model;
}

/// Is it one of a character's bytes after the first?
bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80;
}

/// At most `bytes` of it, cut between characters.
std::string_view beginning(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  std::size_t end = bytes;
  while (end > bytes - 4 && continues(text[end])) --end;
  return text.substr(0, end);
}

bool is_space(char c) {
  return c == ' ' || ('\t' <= c && c <= '\r');
}

/// What vocabularies' patterns repeat: "letters and more letters".
enum class Kind : std::uint8_t { kNone, kSpace, kDigit, kLetter, kOther };

Kind kind_of(char c) {
  if (is_space(c)) return Kind::kSpace;
  if ('0' <= c && c <= '9') return Kind::kDigit;
  const bool ascii = static_cast<unsigned char>(c) < 0x80;
  return !ascii || ('a' <= (c | 32) && (c | 32) <= 'z') ? Kind::kLetter : Kind::kOther;
}

/// The beginning of a text, up to where a run of characters of one kind gets too long; nearly always all of it.
/// libllama splits the texts of some vocabularies (DeepSeek's, Falcon's, GPT-NeoX's) with std::regex, which takes 200
/// bytes of stack for each character of a match: a client's 48,000 equal signs would end the process.
std::string_view until_long_run(std::string_view text) {
  constexpr int kLongest = 8192;  // a match may have two runs
  Kind kind = Kind::kNone;
  int run = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (continues(text[i])) continue;
    const Kind next = kind_of(text[i]);
    run = next == kind ? run + 1 : 1;
    kind = next;
    if (run > kLongest) return text.substr(0, i);
  }
  return text;
}

}  // namespace

void Vocabulary::ModelDeleter::operator()(llama_model* model) const {
  llama_model_free(model);
}

Vocabulary::Vocabulary(const std::filesystem::path& gguf) : model_(load(gguf)) {
  const llama_vocab* vocab = llama_model_get_vocab(model_.get());
  const std::int32_t n = llama_vocab_n_tokens(vocab);
  if (n <= 0 || llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE) {
    throw VocabularyError(fmt::format("{}: the file has no vocabulary", gguf.string()));
  }
  const auto count = static_cast<std::size_t>(n);
  offsets_.reserve(count + 1);
  offsets_.push_back(0);
  hidden_.resize(count);
  ends_.resize(count);
  std::string buffer(64, '\0');
  for (llama_token token = 0; token < n; ++token) {
    const auto i = static_cast<std::size_t>(token);
    std::int32_t size = 0;
    while ((size = llama_token_to_piece(vocab, token, buffer.data(), static_cast<std::int32_t>(buffer.size()), 0,
                                        true)) < 0) {
      buffer.resize(static_cast<std::size_t>(-size));
    }
    bytes_.append(buffer, 0, static_cast<std::size_t>(size));
    offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
    hidden_[i] = (llama_vocab_get_attr(vocab, token) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
    ends_[i] = llama_vocab_is_eog(vocab, token);
    if (ends_[i]) end_tokens_.push_back(token);
  }
  learn_specials();
  std::array<kv::Token, 2> around{};
  const auto frame = std::span(around).first(static_cast<std::size_t>(run_tokenizer("", around, true)));
  const bool adds_bos = llama_vocab_bos(vocab) != LLAMA_TOKEN_NULL && llama_vocab_get_add_bos(vocab);
  const std::size_t begin = frame.size() == 2 || adds_bos ? 1 : 0;
  before_.assign(frame.begin(), frame.begin() + begin);
  after_.assign(frame.begin() + begin, frame.end());
}

Vocabulary::~Vocabulary() = default;

void Vocabulary::learn_specials() {
  const llama_vocab* vocab = llama_model_get_vocab(model_.get());
  const auto has = [vocab](llama_token token, int attributes) {
    return (llama_vocab_get_attr(vocab, token) & attributes) != 0;
  };
  for (llama_token token = 0; token < size(); ++token) {
    const bool users = has(token, LLAMA_TOKEN_ATTR_USER_DEFINED);
    const bool hidden = has(token, LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN);
    if (!users && !hidden) continue;
    const SpecialNames::Special special{.token = token,
                                        .strips_left = has(token, LLAMA_TOKEN_ATTR_LSTRIP),
                                        .strips_right = has(token, LLAMA_TOKEN_ATTR_RSTRIP),
                                        .in_text = !hidden};
    const char* name = llama_vocab_get_text(vocab, token);
    specials_.add(name, special);
    if (!hidden) user_defined_.add(name, special);
  }
}

bool Vocabulary::is_byte_pairs() const {
  return llama_vocab_type(llama_model_get_vocab(model_.get())) == LLAMA_VOCAB_TYPE_BPE;
}

std::vector<kv::Token> Vocabulary::tokenize(const MarkedView& text, bool add_special, bool parse_special,
                                            std::size_t most) const {
  return tokenize(text, add_special, parse_special, most,
                  [&](std::string_view plain, std::vector<kv::Token>& tokens) { append_plain(plain, tokens, most); });
}

std::vector<kv::Token> Vocabulary::tokenize(const MarkedView& marked, bool add_special, bool parse_special,
                                            std::size_t most, const AppendPlain& append) const {
  // llama_tokenize() would find the names itself, but for each one walks over all it has found before: half a megabyte
  // of names takes seconds.
  const SpecialNames& names = parse_special ? specials_ : user_defined_;
  const std::string_view text = marked.text;
  std::span<const TextSpan> plain = marked.plain;
  std::vector<kv::Token> tokens;
  if (add_special) tokens = before_;
  for (std::size_t at = 0;;) {
    port::between_steps();
    while (!plain.empty() && plain.front().end <= at) plain = plain.subspan(1);
    const auto name = names.find(text, at, plain);
    std::size_t end = name ? name->begin : text.size();
    if (name && name->special.strips_left) {
      while (end > at && is_space(text[end - 1])) --end;
    }
    append_between({text, plain}, at, end, append, tokens);
    if (tokens.size() > most) return tokens;
    if (!name) break;
    tokens.push_back(name->special.token);
    at = name->end;
    if (name->special.strips_right) {
      while (at < text.size() && is_space(text[at])) ++at;
    }
  }
  if (add_special) tokens.insert(tokens.end(), after_.begin(), after_.end());
  return tokens;
}

/// libllama finds user-defined tokens in any text. So a name of one that is only text is cut behind its first
/// character; what else lies between two special tokens stays in one piece.
void Vocabulary::append_between(const MarkedView& marked, std::size_t begin, std::size_t end, const AppendPlain& append,
                                std::vector<kv::Token>& tokens) const {
  bool first = true;
  const auto append_to = [&](std::size_t cut) {
    const std::string_view piece = marked.text.substr(begin, cut - begin);
    first ? append(piece, tokens) : append_rest(piece, append, tokens);
    first = false;
    begin = cut;
  };
  for (const TextSpan& span : marked.plain) {
    if (span.begin >= end) break;
    if (span.begin < begin || span.end > end) continue;
    const auto name = user_defined_.find(marked.text.substr(0, span.end), span.begin);
    if (!name || name->begin != span.begin) continue;
    std::size_t cut = span.begin + 1;
    while (cut < span.end && continues(marked.text[cut])) ++cut;
    append_to(cut);
  }
  append_to(end);
}

/// More of a text that was cut. Where a vocabulary puts a space before each text, as before each word, a line's end
/// goes first, and its tokens are left out.
void Vocabulary::append_rest(std::string_view text, const AppendPlain& append, std::vector<kv::Token>& tokens) const {
  if (is_byte_pairs()) return append(text, tokens);
  std::vector<kv::Token> line, both;
  append_part("\n", line);
  append_part("\n" + std::string(text), both);
  if (!std::ranges::equal(line, std::span(both).first(std::min(line.size(), both.size())))) return append(text, tokens);
  tokens.insert(tokens.end(), both.begin() + static_cast<std::ptrdiff_t>(line.size()), both.end());
}

/// A long text is counted in pieces first. Cut anywhere, they have as many tokens as the text, give or take a few at
/// each cut. So if they have twice as many as there is room for, the text has too many.
void Vocabulary::append_plain(std::string_view text, std::vector<kv::Token>& tokens, std::size_t most) const {
  // A text of fewer bytes a token than this is short enough to be tokenized whole, whatever comes of it.
  constexpr std::size_t kFewBytes = 4;
  constexpr std::size_t kPieceBytes = std::size_t{16} << 10;
  const std::size_t room = most - std::min(most, tokens.size());
  if (text.size() / kFewBytes > room) {
    std::vector<kv::Token> pieces;
    for (std::string_view rest = text; !rest.empty() && pieces.size() / 2 <= room;) {
      port::between_steps();
      const std::string_view piece = beginning(rest, kPieceBytes);
      append_whole(piece, pieces);
      rest.remove_prefix(piece.size());
    }
    if (pieces.size() / 2 > room) {
      tokens.insert(tokens.end(), pieces.begin(), pieces.end());
      return;
    }
  }
  append_whole(text, tokens);
}

void Vocabulary::append_whole(std::string_view text, std::vector<kv::Token>& tokens) const {
  while (!text.empty()) {
    const std::string_view part = is_byte_pairs() ? until_long_run(text) : text;
    append_part(part, tokens);
    text.remove_prefix(part.size());
  }
}

void Vocabulary::append_part(std::string_view text, std::vector<kv::Token>& tokens) const {
  static_assert(std::is_same_v<kv::Token, llama_token>);
  const std::size_t old = tokens.size();
  // A guess first: English has some four bytes a token. The call itself says what it needs.
  std::size_t room = text.size() / 2 + 8;
  for (;;) {
    tokens.resize(old + room);
    const std::int32_t n = run_tokenizer(text, std::span(tokens).subspan(old), false);
    tokens.resize(old + static_cast<std::size_t>(std::max(n, 0)));
    if (n >= 0) return;
    room = static_cast<std::size_t>(-n);
  }
}

/// The number of tokens; negative: that many places are needed.
std::int32_t Vocabulary::run_tokenizer(std::string_view text, std::span<kv::Token> tokens, bool add_special) const {
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  if (text.size() > kMax) throw std::length_error("text too long to tokenize");
  std::int32_t n = 0;
  try {
    n = llama_tokenize(llama_model_get_vocab(model_.get()), text.data(), static_cast<std::int32_t>(text.size()),
                       tokens.data(), static_cast<std::int32_t>(tokens.size()), add_special, false);
  } catch (const std::out_of_range&) {  // libllama looks for a byte's token with map::at()
    throw UnknownCharacter("The model's vocabulary has no token for a character of the text, nor for its bytes.");
  }
  if (n == std::numeric_limits<std::int32_t>::min()) throw std::length_error("text too long to tokenize");
  return n;
}

std::string Vocabulary::piece(kv::Token token, bool special) const {
  if (token < 0 || token >= size()) return {};
  const auto i = static_cast<std::size_t>(token);
  if (hidden_[i] && !special) return {};
  return bytes_.substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

std::string Vocabulary::detokenize(std::span<const kv::Token> tokens, bool special) const {
  std::string text;
  for (const kv::Token token : tokens) text += piece(token, special);
  return text;
}

std::string Vocabulary::bos() const {
  return piece(llama_vocab_bos(llama_model_get_vocab(model_.get())), true);
}

std::string Vocabulary::eos() const {
  return piece(llama_vocab_eos(llama_model_get_vocab(model_.get())), true);
}

std::string Vocabulary::pad() const {
  return piece(llama_vocab_pad(llama_model_get_vocab(model_.get())), true);
}

bool Vocabulary::is_end(kv::Token token) const {
  return token >= 0 && token < size() && ends_[static_cast<std::size_t>(token)];
}

}  // namespace coppice::text
