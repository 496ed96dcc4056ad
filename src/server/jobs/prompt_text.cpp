#include "server/jobs/prompt_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "server/base/request_error.h"
#include "text/chat_template.h"

namespace coppice::server {

namespace {

/// In the words by which gateways and agents know it. `count`: tokens, at least.
RequestError too_long(const ModelFacts& facts, const std::string& what, std::size_t count, const std::string& field) {
  RequestError error(400,
                     fmt::format("This model's maximum context length is {} tokens. However, {}. Please reduce the "
                                 "length of '{}'.",
                                 facts.context_length, what, field),
                     field, "context_length_exceeded");
  error.set_sizes({.tokens = static_cast<std::int64_t>(count), .context = facts.context_length});
  return error;
}

text::ChatMessage as_text(Message&& message) {
  text::ChatMessage result{.role = std::move(message.role),
                           .content = {},
                           .calls = std::move(message.calls),
                           .reasoning = std::move(message.reasoning),
                           .call_id = std::move(message.call_id)};
  for (ContentPart& part : message.content) {
    if (part.picture) {
      result.content += part.picture->marker;
    } else if (result.content.empty()) {
      result.content = std::move(part.text);
    } else {
      result.content += part.text;
    }
  }
  return result;
}

/// Refuses, by its size alone, text that cannot fit: rendering and tokenizing it might take seconds.
void check_bytes(const ModelFacts& facts, std::size_t bytes, const std::string& field, int times) {
  if (times == kAnyLength) return;
  const std::size_t longest = facts.max_token_bytes;
  if (bytes <= longest * static_cast<std::size_t>(facts.context_length) * static_cast<std::size_t>(times)) return;
  const std::size_t least = (bytes + longest - 1) / longest;
  throw too_long(facts, fmt::format("{} bytes are at least {} tokens", bytes, least), least, field);
}

}  // namespace

void check_count(const ModelFacts& facts, std::size_t count, const std::string& field) {
  if (count <= static_cast<std::size_t>(facts.context_length)) return;
  throw too_long(facts, fmt::format("there are {} tokens", count), count, field);
}

void check_prompt(const ModelFacts& facts, kv::TextView prompt, const std::string& field, bool answers) {
  const std::size_t count = prompt.size();
  if (count == 0) throw RequestError::bad_field(field, "has no tokens");
  if (count + (answers ? 1 : 0) <= static_cast<std::size_t>(facts.context_length)) return;
  std::string what = fmt::format("{} {} tokens", answers ? "your prompt has" : "there are", count);
  if (prompt.n_spans() > 0) {
    std::int64_t rows = 0;
    for (const kv::MediumSpan& span : prompt.spans()) rows += span.n;
    what += fmt::format(", {} of them of its images", rows);
  }
  throw too_long(facts, answers ? what + ", and the answer needs one at least" : what, count, field);
}

std::vector<kv::Token> text_tokens(const ModelFacts& facts, std::string_view text, const std::string& field,
                                   const std::function<std::vector<kv::Token>(std::size_t)>& tokenize, int times) {
  if (times == kAnyLength) return tokenize(std::numeric_limits<std::int32_t>::max());
  check_bytes(facts, text.size(), field, times);
  const auto context = static_cast<std::size_t>(facts.context_length);
  const std::size_t counted = context * static_cast<std::size_t>(std::max(times, kCountedContexts));
  std::vector<kv::Token> tokens = tokenize(counted);
  if (tokens.size() <= context * static_cast<std::size_t>(times)) return tokens;
  const char* least = tokens.size() > counted ? "at least " : "";
  throw too_long(facts, fmt::format("your prompt has {}{} tokens", least, tokens.size()), tokens.size(), field);
}

kv::Text prompt_symbols(const ModelFacts& facts, const text::MarkedView& text, const PromptPictures& pictures,
                        const std::string& field, const Tokenize& tokenize, int times) {
  kv::Text symbols;
  for (const PromptPictures::Cut& cut : pictures.cuts(text.text)) {
    std::vector<text::TextSpan> plain;
    for (const text::TextSpan& span : text.plain) {
      const std::size_t begin = std::max(span.begin, cut.begin), end = std::min(span.end, cut.end);
      if (begin < end) plain.push_back({begin - cut.begin, end - cut.begin});
    }
    const text::MarkedView part(text.text.substr(cut.begin, cut.end - cut.begin), plain);
    const bool first = cut.begin == 0;
    if (first || !part.text.empty()) {
      symbols.append(
          text_tokens(facts, part.text, field, [&](std::size_t most) { return tokenize(part, first, most); }, times));
    }
    if (cut.file) append(pictures.picture(cut.file), symbols);
    if (times != kAnyLength && symbols.size() > kCountedContexts * static_cast<std::size_t>(facts.context_length))
      break;
  }
  return symbols;
}

text::ToolPrompt chat_text(const Model& model, std::vector<Message> messages, text::TurnEnd end, const Tools& tools,
                           const std::string& field, int times) {
  const ModelFacts& facts = model.facts();
  if (times != kAnyLength && std::ssize(messages) > std::ptrdiff_t{facts.context_length})
    throw too_long(facts, fmt::format("your {} messages are as many tokens at least", messages.size()), messages.size(),
                   field);
  std::vector<text::ChatMessage> chat;
  chat.reserve(messages.size());
  std::size_t bytes = 0;
  for (Message& message : messages) {
    const text::ChatMessage& to = chat.emplace_back(as_text(std::move(message)));
    bytes += to.content.size() + to.reasoning.size();
    for (const text::ChatCall& call : to.calls) bytes += call.arguments.size();
  }
  for (const text::ToolSpec& tool : tools.specs) bytes += tool.description.size() + tool.parameters.size();
  check_bytes(facts, bytes, field, times);
  try {
    return model.render({.messages = chat,
                         .end = end,
                         .tools = tools.specs,
                         .may_call = tools.may_call,
                         .must_call = tools.must_call,
                         .only = tools.only,
                         .allowed = tools.allowed,
                         .parallel = tools.parallel,
                         .forms = tools.forms,
                         .thinks = tools.thinks,
                         .variables = tools.variables});
  } catch (const text::TemplateError& e) {
    throw RequestError::bad_field(field, fmt::format("the chat template refuses them: {}", e.what()));
  }
}

kv::Text chat_symbols(const Model& model, std::vector<Message> messages, text::TurnEnd end, const Tools& tools,
                      const std::string& field, int times) {
  PromptPictures pictures(model.pictures(), std::string("count\0", 6));  // no cache_salt is that
  pictures.add(messages);
  if (auto missing = pictures.missing(); !missing.empty()) throw MissingPictures(pictures.owner(), std::move(missing));
  while (!pictures.look()) {
  }
  const text::ToolPrompt chat = chat_text(model, std::move(messages), end, tools, field, times);
  pictures.check_all_in(chat.prompt);
  const auto tokenize = [&](const text::MarkedView& part, bool first, std::size_t most) {
    return model.tokenize(part, first, true, most);
  };
  return prompt_symbols(model.facts(), text::MarkedView(chat.prompt, chat.plain), pictures, field, tokenize, times);
}

}  // namespace coppice::server
