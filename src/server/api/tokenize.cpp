#include "server/api/tokenize.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "server/api/base/dialect.h"
#include "server/api/base/json_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/base/tool_fields.h"
#include "server/api/openai/openai_request.h"
#include "server/base/random_name.h"
#include "server/jobs/prompt_text.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

using Tokens = std::vector<kv::Token>;

struct CountedChat {
  std::vector<Message> messages;
  text::TurnEnd end;
  Tools tools;
};

CountedChat chat_of(const Model& model, const JsonFields& f) {
  const Json* field = f.find("messages");
  if (field == nullptr) throw RequestError::bad_field("messages", "is required", "missing_field");
  refuse_unbuilt_fields(f);
  std::vector<Message> messages = parse_messages(*field, model.facts().most_pictures);
  const text::TurnEnd end = parse_turn_end(f, messages, model.facts().continues_assistant);
  return {.messages = std::move(messages), .end = end, .tools = parse_tools(f)};
}

kv::Text symbols_of(const Model& model, const JsonFields& f, int times = 1) {
  CountedChat chat = chat_of(model, f);
  return chat_symbols(model, std::move(chat.messages), chat.end, chat.tools, "messages", times);
}

/// As llama-server: a piece of a character is a list of its bytes.
Json text_or_bytes(const std::string& piece) {
  if (text::is_utf8(piece)) return Json(piece);
  JsonArray bytes;
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Tokens plain_tokens(const Model& model, const JsonFields& f) {
  const auto content = f.string("content");  // llama-server
  const auto prompt = f.string("prompt");    // vLLM, which adds the beginning token unless told not to
  if (!content && !prompt)
    throw RequestError::bad_field("content", "is required (or 'prompt', or 'messages')", "missing_field");
  const bool special =
      content ? f.boolean("add_special").value_or(false) : f.boolean("add_special_tokens").value_or(true);
  const bool parse = f.boolean("parse_special").value_or(true);
  const std::string& text = content ? *content : *prompt;
  return text_tokens(model.facts(), text, content ? "content" : "prompt",
                     [&](std::size_t most) { return model.tokenize(text, special, parse, most); });
}

JsonObject rendered(const JsonFields& f, kv::TextView prompt) {
  JsonArray ids;
  for (const std::int32_t bits : prompt.bits()) ids.push_back(std::max(bits, 0));
  return {{"request_id", "render-" + random_name()},
          {"model", f.string("model").value_or("")},
          {"token_ids", std::move(ids)},
          {"sampling_params", JsonObject{}},
          {"stream", f.boolean("stream").value_or(false)}};
}

}  // namespace

std::string render_chat_reply(const Model& model, std::string_view body) {
  const JsonObject json = parse_body(body, json_limits(model.facts().context_length));
  const JsonFields f(json);
  return dump(rendered(f, symbols_of(model, f)));
}

std::string render_prompts_reply(const Model& model, std::string_view body) {
  const JsonObject json = parse_body(body, json_limits(model.facts().context_length, kMaxPrompts));
  const JsonFields f(json);
  const bool special = f.boolean("add_special_tokens").value_or(true);
  JsonArray list;
  for (const Prompt& prompt : parse_prompts(f, request_limits(model.facts()))) {
    const auto* text = std::get_if<std::string>(&prompt);
    const auto* tokens = std::get_if<Tokens>(&prompt);
    if (text != nullptr) {
      list.push_back(rendered(f, text_tokens(model.facts(), *text, "prompt", [&](std::size_t most) {
                                return model.tokenize(*text, special, true, most);
                              })));
    } else if (tokens != nullptr) {
      list.push_back(rendered(f, *tokens));
    }
  }
  return dump(std::move(list));
}

std::string tokenize_reply(const Model& model, std::string_view body) {
  const JsonObject json = parse_body(body, json_limits(model.facts().context_length));
  const JsonFields f(json);
  const kv::Text all = f.has("messages") ? symbols_of(model, f) : kv::Text(plain_tokens(model, f));
  const Tokens tokens = all.view().tokens();  // rows of images have none
  JsonObject reply;
  const auto piece = [&model](kv::Token token) { return model.detokenize(std::span(&token, 1), true); };
  if (f.boolean("with_pieces").value_or(false)) {
    JsonArray& list = reply["tokens"].emplace_array();
    for (const kv::Token token : tokens)
      list.push_back(JsonObject{{"id", token}, {"piece", text_or_bytes(piece(token))}});
  } else {
    reply["tokens"] = JsonArray(tokens.begin(), tokens.end());
  }
  reply["count"] = all.size();
  reply["max_model_len"] = model.facts().context_length;
  if (f.boolean("return_token_strs").value_or(false)) {
    JsonArray& list = reply["token_strs"].emplace_array();
    for (const kv::Token token : tokens) list.push_back(Json(text::to_utf8(piece(token))));
  }
  return dump(std::move(reply));
}

std::string template_reply(const Model& model, std::string_view body) {
  const JsonObject json = parse_body(body, json_limits(model.facts().context_length));
  CountedChat chat = chat_of(model, JsonFields(json));
  PromptPictures pictures(nullptr, {});
  pictures.add(chat.messages);
  std::string prompt = chat_text(model, std::move(chat.messages), chat.end, chat.tools, "messages").prompt;
  return dump(JsonObject{{"prompt", with_public_markers(prompt, pictures)}});
}

std::string count_reply(const Model& model, std::string_view body) {
  const JsonObject json = parse_body(body, json_limits(model.facts().context_length));
  const kv::Text prompt = symbols_of(model, JsonFields(json), kAnyLength);
  return dump(JsonObject{{"object", "response.input_tokens"}, {"input_tokens", prompt.size()}});
}

std::string detokenize_reply(const Model& model, std::string_view body) {
  const JsonObject json = parse_body(body, json_limits(model.facts().context_length));
  const JsonFields f(json);
  const auto* tokens = f.find("tokens");
  if (tokens == nullptr) throw RequestError::bad_field("tokens", "is required", "missing_field");
  const Tokens ids = token_array(*tokens, "tokens", model.facts().n_vocab);
  check_count(model.facts(), ids.size(), "tokens");
  const std::string text = text::to_utf8(model.detokenize(ids, true));
  return dump(JsonObject{{"content", text}, {"prompt", text}});
}

}  // namespace coppice::server
