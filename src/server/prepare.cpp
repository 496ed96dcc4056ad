#include "server/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/tidy_up.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

using Tokens = std::vector<kv::Token>;

/// Enough for as many messages as the context has tokens, and for `prompts` token arrays as long as the context.
JsonLimits json_limits(const ModelFacts& facts, int prompts) {
  constexpr std::size_t kMessageParts = 12;  // an object of name, role and content, that a list of one part of text
  const auto context = static_cast<std::size_t>(facts.context_length);
  JsonLimits limits;
  limits.parts += kMessageParts * context;
  limits.elements += std::max(kMessageParts, static_cast<std::size_t>(prompts)) * context;
  return limits;
}

/// Rendering and tokenizing may take seconds for text that cannot fit anyway: this refuses it by its size alone.
void check_bytes(const ModelFacts& facts, std::size_t bytes, const char* field) {
  if (bytes / facts.max_token_bytes < static_cast<std::size_t>(facts.context_length)) return;
  throw ApiError(400,
                 fmt::format("'{}': {} bytes cannot fit: the context holds {} tokens of at most {} bytes.", field,
                             bytes, facts.context_length, facts.max_token_bytes),
                 field, "context_length_exceeded");
}

ApiError too_long(const ModelFacts& facts, const std::string& count, const char* field, const char* answer = "") {
  return {400, fmt::format("'{}': {}, but the context holds {}{}.", field, count, facts.context_length, answer), field,
          "context_length_exceeded"};
}

/// Of what is only asked for, not generated from: it need not leave room for an answer.
void check_count(const ModelFacts& facts, std::size_t count, const char* field) {
  if (count <= static_cast<std::size_t>(facts.context_length)) return;
  throw too_long(facts, fmt::format("{} tokens", count), field);
}

/// tokenize: called with the most tokens that are wanted, as Model::tokenize().
Tokens text_tokens(const ModelFacts& facts, std::string_view text, const char* field, auto tokenize) {
  check_bytes(facts, text.size(), field);
  const auto most = static_cast<std::size_t>(facts.context_length);
  Tokens tokens = tokenize(most);
  if (tokens.size() <= most) return tokens;
  throw too_long(facts, fmt::format("more than {} tokens in {} bytes", most, text.size()), field);
}

/// Names of special tokens count as these: whoever brings a chat template of their own writes them into the
/// prompt (llama-server and vLLM do the same).
Tokens prompt_tokens(const Model& model, std::string_view text, const char* field, std::string_view salt) {
  return text_tokens(model.facts(), text, field,
                     [&](std::size_t most) { return model.prompt_tokens(text, salt, most); });
}

/// The chat as the model wants it.
std::string chat_text(const Model& model, std::span<const text::ChatMessage> messages, bool add_generation_prompt) {
  const ModelFacts& facts = model.facts();
  if (std::ssize(messages) > std::ptrdiff_t{facts.context_length})
    throw ApiError(400,
                   fmt::format("'messages': {} of them cannot fit: the context holds {} tokens.", messages.size(),
                               facts.context_length),
                   "messages", "context_length_exceeded");
  std::size_t bytes = 0;
  for (const auto& message : messages) bytes += message.content.size();
  check_bytes(facts, bytes, "messages");
  try {
    return model.render(messages, add_generation_prompt);
  } catch (const text::TemplateError& e) {
    throw ApiError::field("messages", fmt::format("the chat template refuses them: {}", e.what()));
  }
}

void check_length(const Tokens& tokens, const char* field, const ModelFacts& facts) {
  if (tokens.empty()) throw ApiError::field(field, "has no tokens");
  if (std::ssize(tokens) < std::ptrdiff_t{facts.context_length}) return;
  throw too_long(facts, fmt::format("{} tokens", tokens.size()), field, ", the answer included");
}

std::shared_ptr<const sampling::SharedParams> shared_params(const sampling::SamplingParams& params,
                                                            std::int32_t n_vocab) {
  try {
    return std::make_shared<const sampling::SharedParams>(params, n_vocab);
  } catch (const sampling::ParamError& e) {
    throw ApiError(400, e.what(), e.field(), "invalid_value");
  }
}

engine::Request make_request(Model& model, const OpenAiRequest& parsed,
                             const std::shared_ptr<const sampling::SharedParams>& shared, Tokens tokens) {
  engine::Request request;
  request.id = model.next_id();
  request.max_tokens = parsed.max_tokens;
  request.cache_salt = parsed.cache_salt;
  request.priority = parsed.priority;
  request.cache_report = parsed.cache_report;
  request.samples = model.make_generations(shared, parsed.n, tokens);
  request.prompt = std::move(tokens);
  return request;
}

std::string echo_text(const Model& model, const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return text::to_utf8(model.detokenize(std::get<Tokens>(prompt), true));
}

/// More could never all be let in, however often they are sent.
int max_prompts(const ModelFacts& facts) {
  const int waiting = static_cast<int>(std::min(facts.max_waiting, std::size_t{kMaxPrompts}));
  return std::min(waiting + facts.max_batch, kMaxPrompts);
}

/// The tokens are there: who waits in the queue, or is answered for minutes, must not hold the texts too.
void drop_texts(OpenAiRequest& parsed) {
  parsed.messages = {};
  parsed.prompts = {};
  parsed.sampling = {.logprobs = parsed.sampling.logprobs};
}

}  // namespace

Preparation::Preparation(Model& model, const ServedNames& names, Endpoint endpoint, std::string body,
                         std::string_view tenant_salt)
    : model_(model),
      names_(names),
      endpoint_(endpoint),
      body_(std::move(body)),
      body_bytes_(body_.size()),
      tenant_salt_(tenant_salt) {}

bool Preparation::step() {
  if (!prepared_) {
    parse();
    return false;
  }
  try {
    return tokenize();
  } catch (...) {
    const TidyUp tidy_up(body_bytes_);
    prepared_.reset();
    throw;
  }
}

void Preparation::parse() {
  const TidyUp tidy_up(body_bytes_);
  const std::string body = std::exchange(body_, {});
  const ModelFacts& facts = model_.facts();
  const JsonLimits limits = json_limits(facts, endpoint_ == Endpoint::kChat ? 1 : kMaxPrompts);
  OpenAiRequest parsed =
      parse_request(endpoint_, parse_body(body, limits),
                    {.n_vocab = facts.n_vocab, .max_choices = facts.max_batch, .max_prompts = max_prompts(facts)});
  parsed.cache_salt.insert(0, tenant_salt_);
  if (!names_.known(parsed.model))
    throw ApiError(404, fmt::format("The model '{}' does not exist; this server has '{}'.", parsed.model, names_.id),
                   "model", "model_not_found");
  shared_ = shared_params(parsed.sampling, facts.n_vocab);
  prepared_.emplace();
  prepared_->model = names_.resolve(parsed.model);
  prepared_->parsed = std::move(parsed);
}

bool Preparation::tokenize() {
  OpenAiRequest& parsed = prepared_->parsed;
  if (endpoint_ == Endpoint::kChat) {
    const std::string text = chat_text(model_, parsed.messages, parsed.add_generation_prompt);
    add(prompt_tokens(model_, text, "messages", parsed.cache_salt), "messages");
  }
  for (std::size_t bytes = 0; prepared_->requests.size() < parsed.prompts.size();) {
    if (bytes >= kStepBytes) return false;
    const Prompt& prompt = parsed.prompts[prepared_->requests.size()];
    const auto* text = std::get_if<std::string>(&prompt);
    add(text ? prompt_tokens(model_, *text, "prompt", parsed.cache_salt) : std::get<Tokens>(prompt), "prompt");
    if (parsed.echo) prepared_->echoes.push_back(echo_text(model_, prompt));
    bytes += text ? text->size() : std::get<Tokens>(prompt).size() * sizeof(kv::Token);
  }
  const TidyUp tidy_up(body_bytes_);
  drop_texts(parsed);
  return true;
}

void Preparation::add(Tokens tokens, const char* field) {
  check_length(tokens, field, model_.facts());
  prepared_->requests.push_back(make_request(model_, prepared_->parsed, shared_, std::move(tokens)));
}

Prepared prepare(Model& model, const ServedNames& names, Endpoint endpoint, std::string_view body,
                 std::string_view tenant_salt) {
  Preparation preparation(model, names, endpoint, std::string(body), tenant_salt);
  while (!preparation.step()) {
  }
  return preparation.take();
}

std::string tokenize_reply(const Model& model, std::string_view body) {
  const TidyUp tidy_up(body.size());
  const JsonObject json = parse_body(body, json_limits(model.facts(), 1));
  const JsonFields f(json);
  Tokens tokens;
  const char* field = "messages";
  if (const auto* messages = f.find(field)) {
    const auto chat = parse_messages(*messages);
    const std::string text = chat_text(model, chat, f.boolean("add_generation_prompt").value_or(true));
    tokens = text_tokens(model.facts(), text, field,
                         [&](std::size_t most) { return model.tokenize(text, true, true, most); });
  } else {
    const auto content = f.string("content");  // llama-server
    const auto prompt = f.string("prompt");    // vLLM, which adds the beginning token unless told not to
    if (!content && !prompt)
      throw ApiError::field("content", "is required (or 'prompt', or 'messages')", "missing_field");
    const bool special =
        content ? f.boolean("add_special").value_or(false) : f.boolean("add_special_tokens").value_or(true);
    const bool parse = f.boolean("parse_special").value_or(true);
    const std::string& text = content ? *content : *prompt;
    field = content ? "content" : "prompt";
    tokens = text_tokens(model.facts(), text, field,
                         [&](std::size_t most) { return model.tokenize(text, special, parse, most); });
  }
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
  const TidyUp tidy_up(body.size());
  const JsonObject json = parse_body(body, json_limits(model.facts(), 1));
  const JsonFields f(json);
  const auto* tokens = f.find("tokens");
  if (tokens == nullptr) throw ApiError::field("tokens", "is required", "missing_field");
  const std::vector<kv::Token> ids = token_array(*tokens, "tokens", model.facts().n_vocab);
  check_count(model.facts(), ids.size(), "tokens");
  const std::string text = text::to_utf8(model.detokenize(ids, true));
  return dump(JsonObject{{"content", text}, {"prompt", text}});
}

}  // namespace coppice::server
