#include "server/jobs/prompt_text.h"

#include <fmt/format.h>

#include <utility>

#include "server/base/request_error.h"
#include "text/chat_template.h"

namespace coppice::server {

namespace {

RequestError too_long(const ModelFacts& facts, const std::string& count, const std::string& field,
                      const char* answer = "") {
  return {400, fmt::format("'{}': {}, but the context holds {}{}.", field, count, facts.context_length, answer), field,
          "context_length_exceeded"};
}

text::ChatMessage as_text(Message&& message, const std::string& field) {
  if (!message.tool_calls.empty() || !message.reasoning.empty())
    throw RequestError::unsupported(field, "tool calls and reasoning are not supported yet");
  text::ChatMessage result{std::move(message.role), {}};
  for (ContentPart& part : message.content) {
    if (result.content.empty()) {
      result.content = std::move(part.text);
    } else {
      result.content += part.text;
    }
  }
  return result;
}

/// Refuses, by its size alone, text that cannot fit: rendering and tokenizing it might take seconds.
void check_bytes(const ModelFacts& facts, std::size_t bytes, const std::string& field) {
  if (bytes <= facts.max_token_bytes * static_cast<std::size_t>(facts.context_length)) return;
  throw RequestError(400,
                     fmt::format("'{}': {} bytes cannot fit: the context holds {} tokens of at most {} bytes.", field,
                                 bytes, facts.context_length, facts.max_token_bytes),
                     field, "context_length_exceeded");
}

}  // namespace

void check_count(const ModelFacts& facts, std::size_t count, const std::string& field) {
  if (count <= static_cast<std::size_t>(facts.context_length)) return;
  throw too_long(facts, fmt::format("{} tokens", count), field);
}

void check_prompt(const ModelFacts& facts, std::size_t count, const std::string& field, bool answers) {
  if (count == 0) throw RequestError::bad_field(field, "has no tokens");
  if (!answers) return check_count(facts, count, field);
  if (count < static_cast<std::size_t>(facts.context_length)) return;
  throw too_long(facts, fmt::format("{} tokens", count), field, ", the answer included");
}

std::vector<kv::Token> text_tokens(const ModelFacts& facts, std::string_view text, const std::string& field,
                                   const std::function<std::vector<kv::Token>(std::size_t)>& tokenize) {
  check_bytes(facts, text.size(), field);
  const auto most = static_cast<std::size_t>(facts.context_length);
  std::vector<kv::Token> tokens = tokenize(most);
  if (tokens.size() <= most) return tokens;
  throw too_long(facts, fmt::format("more than {} tokens in {} bytes", most, text.size()), field);
}

std::string chat_text(const Model& model, std::vector<Message> messages, bool add_generation_prompt,
                      const std::string& field) {
  const ModelFacts& facts = model.facts();
  if (std::ssize(messages) > std::ptrdiff_t{facts.context_length})
    throw RequestError(400,
                       fmt::format("'{}': {} of them cannot fit: the context holds {} tokens.", field, messages.size(),
                                   facts.context_length),
                       field, "context_length_exceeded");
  std::vector<text::ChatMessage> chat;
  chat.reserve(messages.size());
  std::size_t bytes = 0;
  for (Message& message : messages) bytes += chat.emplace_back(as_text(std::move(message), field)).content.size();
  check_bytes(facts, bytes, field);
  try {
    return model.render(chat, add_generation_prompt);
  } catch (const text::TemplateError& e) {
    throw RequestError::bad_field(field, fmt::format("the chat template refuses them: {}", e.what()));
  }
}

}  // namespace coppice::server
