#include "server/api/openai/openai_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

constexpr float kLowestLogprob = -9999;  // JSON has no infinity

double finite(float logprob) {
  return std::max(logprob, kLowestLogprob);
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

JsonObject chat_token(const sampling::TokenLogprob& t) {
  JsonArray bytes;
  for (const char c : t.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text::to_utf8(t.bytes)}, {"logprob", finite(t.logprob)}, {"bytes", std::move(bytes)}};
}

/// Completions have no "bytes": OpenAI writes a token that is no whole character as "bytes:\xe2\x82", so that
/// different ones stay different keys.
std::string completion_token(const std::string& bytes) {
  if (text::is_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

}  // namespace

std::int64_t characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return !continues_character(c); });
}

JsonObject chat_logprobs(std::span<const sampling::LogprobEntry> entries) {
  JsonArray content;
  for (const auto& entry : entries) {
    JsonObject token = chat_token(entry.chosen);
    JsonArray top;
    for (const auto& t : entry.top) top.push_back(chat_token(t));
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

namespace {

/// The lists of completions' logprobs.
struct TokenLists {
  JsonArray tokens, logprobs, tops, offsets;

  /// `known`: its log-probability is.
  void add(const sampling::LogprobEntry& entry, std::size_t n_top, bool known, std::int64_t offset) {
    const auto& [chosen, top] = entry;
    tokens.push_back(Json(completion_token(chosen.bytes)));
    offsets.push_back(offset);
    logprobs.push_back(known ? Json(finite(chosen.logprob)) : Json(nullptr));
    if (!known) {
      tops.push_back(nullptr);
      return;
    }
    JsonObject map;
    for (const auto& t : std::span(top).first(std::min(n_top, top.size())))
      map[completion_token(t.bytes)] = finite(t.logprob);
    map[completion_token(chosen.bytes)] = finite(chosen.logprob);  // always told, also when not among the top
    tops.push_back(std::move(map));
  }
  JsonObject json() && {
    return {{"tokens", std::move(tokens)},
            {"token_logprobs", std::move(logprobs)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
  }
};

/// Of a token that begins behind so many characters: half a character belongs to the one that it began.
std::int64_t begin_of(std::string_view bytes, std::int64_t characters) {
  const bool inside = characters > 0 && !bytes.empty() && continues_character(bytes.front());
  return inside ? characters - 1 : characters;
}

}  // namespace

JsonObject completion_logprobs(std::span<const sampling::LogprobEntry> entries, std::int64_t& offset) {
  TokenLists lists;
  for (const auto& entry : entries) {
    lists.add(entry, entry.top.size(), true, begin_of(entry.chosen.bytes, offset));
    offset += characters(entry.chosen.bytes);
  }
  return std::move(lists).json();
}

JsonObject echo_logprobs(std::span<const sampling::PromptToken> tokens, int n_top,
                         std::span<const std::int64_t> offsets) {
  TokenLists lists;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    lists.add(tokens[i].entry, static_cast<std::size_t>(n_top), tokens[i].rank > 0, offsets[i]);
  return std::move(lists).json();
}

JsonArray prompt_logprobs(std::span<const sampling::PromptToken> tokens, int n_top) {
  JsonArray all;
  for (const auto& [entry, rank] : tokens) {
    if (rank == 0) {
      all.push_back(nullptr);
      continue;
    }
    JsonObject map;
    const auto add = [&map](const sampling::TokenLogprob& t, std::int64_t its_rank) {
      map[std::to_string(t.token)] =
          JsonObject{{"logprob", finite(t.logprob)}, {"rank", its_rank}, {"decoded_token", text::to_utf8(t.bytes)}};
    };
    add(entry.chosen, rank);
    for (std::size_t i = 0; i < std::min(entry.top.size(), static_cast<std::size_t>(n_top)); ++i)
      add(entry.top[i], static_cast<std::int64_t>(i) + 1);
    all.push_back(std::move(map));
  }
  return all;
}

std::int64_t TokenPlaces::next(std::string_view bytes) {
  const std::string_view rest = std::string_view(text_).substr(at_);
  if (!rest.starts_with(bytes) && at_ == 0) {
    // Some tokenizers put a space before the text, some a special token.
    if (!bytes.starts_with(' ') || !rest.starts_with(bytes.substr(1))) return 0;
    bytes.remove_prefix(1);
  }
  const std::int64_t begin = begin_of(bytes, offset_);
  at_ = std::min(at_ + bytes.size(), text_.size());
  offset_ += characters(bytes);
  return begin;
}

}  // namespace coppice::server
