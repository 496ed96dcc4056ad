// From a prompt's text, or a chat, to tokens. What cannot fit into the context is refused as early as possible.
//
// Each throws RequestError (400). `field`: what the client calls the text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kv/types.h"
#include "server/base/request_error.h"
#include "server/jobs/generation_request.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// Refuses, by its size alone, text that cannot fit: rendering and tokenizing it might take seconds.
void check_bytes(const ModelFacts& facts, std::size_t bytes, const std::string& field);

/// Refuses more tokens than the context holds. Of what is only asked about, not generated from: it leaves no room for an answer.
void check_count(const ModelFacts& facts, std::size_t count, const std::string& field);

/// Refuses a prompt without tokens, or one that leaves no room for an answer.
void check_prompt(const ModelFacts& facts, std::size_t count, const std::string& field);

/// The chat as the model's template has it.
std::string chat_text(const Model& model, std::vector<Message> messages, bool add_generation_prompt,
                      const std::string& field);

/// For a text of so many bytes whose tokens were not even counted to their end.
RequestError too_many_tokens(const ModelFacts& facts, std::size_t bytes, const std::string& field);

/// `tokenize`: called with the most tokens that are wanted, as Model::tokenize().
std::vector<kv::Token> text_tokens(const ModelFacts& facts, std::string_view text, const std::string& field,
                                   auto tokenize) {
  check_bytes(facts, text.size(), field);
  const auto most = static_cast<std::size_t>(facts.context_length);
  std::vector<kv::Token> tokens = tokenize(most);
  if (tokens.size() > most) throw too_many_tokens(facts, text.size(), field);
  return tokens;
}

}  // namespace coppice::server
