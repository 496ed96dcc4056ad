#include "server/api/tokenize.h"

#include <span>
#include <vector>

#include "server/api/json_fields.h"
#include "server/api/openai_request.h"
#include "server/jobs/prompt_text.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

using Tokens = std::vector<kv::Token>;

Tokens chat_tokens(const Model& model, const JsonFields& f, const char* field) {
  const std::string text =
      chat_text(model, parse_messages(*f.find(field)), f.boolean("add_generation_prompt").value_or(true), field);
  return text_tokens(model.facts(), text, field,
                     [&](std::size_t most) { return model.tokenize(text, true, true, most); });
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

}  // namespace

std::string tokenize_reply(const Model& model, std::string_view body) {
  const JsonObject json = parse_body(body, json_limits(model.facts().context_length));
  const JsonFields f(json);
  const Tokens tokens = f.has("messages") ? chat_tokens(model, f, "messages") : plain_tokens(model, f);
  JsonObject reply;
  const auto piece = [&model](kv::Token token) { return text::to_utf8(model.detokenize(std::span(&token, 1), true)); };
  if (f.boolean("with_pieces").value_or(false)) {
    JsonArray& list = reply["tokens"].emplace_array();
    for (const kv::Token token : tokens) list.push_back(JsonObject{{"id", token}, {"piece", piece(token)}});
  } else {
    reply["tokens"] = JsonArray(tokens.begin(), tokens.end());
  }
  reply["count"] = tokens.size();
  reply["max_model_len"] = model.facts().context_length;
  if (f.boolean("return_token_strs").value_or(false)) {
    JsonArray& list = reply["token_strs"].emplace_array();
    for (const kv::Token token : tokens) list.push_back(Json(piece(token)));
  }
  return dump(std::move(reply));
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
