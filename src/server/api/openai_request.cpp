#include "server/api/openai_request.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "server/api/json_fields.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::size_t kMaxStops = 16;
constexpr double kMaxTimeoutSeconds = 1e8;  // three years: it still fits the clock

bool is_empty(const Json& value) {
  const JsonArray* array = value.if_array();
  const JsonObject* object = value.if_object();
  return (array != nullptr && array->empty()) || (object != nullptr && object->empty());
}

bool is_string(const Json& value, std::string_view expected) {
  return value.is_string() && std::string_view(value.get_string()) == expected;
}

std::string to_string(const Json& string) {
  return std::string(string.get_string());
}

/// Fields whose silent loss would change what the client gets: better refused than ignored.
void refuse_unbuilt(const JsonFields& f) {
  for (const char* name : {"tools", "functions"})
    if (const Json* value = f.find(name); value && !is_empty(*value)) throw RequestError::unsupported(name);
  for (const char* name : {"tool_choice", "function_call"})
    if (const Json* value = f.find(name); value && !is_string(*value, "none"))
      throw RequestError::unsupported(name, "only \"none\" is supported");
  if (const Json* format = f.find("response_format")) {
    const JsonObject* object = format->if_object();
    const Json* type = object == nullptr ? nullptr : object->if_contains("type");
    if (type == nullptr || !type->is_string())
      throw RequestError::bad_field("response_format", "must be an object with a \"type\"", "invalid_type");
    if (!is_string(*type, "text"))
      throw RequestError::unsupported("response_format", "only {\"type\": \"text\"} is supported");
  }
  for (const char* name : {"audio", "grammar", "json_schema", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "structured_outputs"})
    if (const Json* value = f.find(name); value && !is_empty(*value)) throw RequestError::unsupported(name);
  if (const Json* modalities = f.find("modalities"); modalities && *modalities != Json(JsonArray{"text"}))
    throw RequestError::unsupported("modalities", "only [\"text\"] is supported");
  if (f.string("suffix").value_or("") != "") throw RequestError::unsupported("suffix");
}

const JsonObject& object_at(const JsonArray& list, std::size_t index, const std::string& where) {
  const JsonObject* object = list[index].if_object();
  if (object == nullptr) throw RequestError::bad_field(where, "must be an object", "invalid_type");
  return *object;
}

std::vector<ContentPart> content_parts(const Json& content, const std::string& path) {
  if (content.is_string()) return {{to_string(content)}};
  const JsonArray* parts = content.if_array();
  if (parts == nullptr) throw RequestError::bad_field(path, "must be a string or a list of parts", "invalid_type");
  std::vector<ContentPart> result;
  for (std::size_t i = 0; i < parts->size(); ++i) {
    const std::string where = fmt::format("{}[{}]", path, i);
    const JsonFields part(object_at(*parts, i, where), where + ".");
    const auto type = part.string("type");
    if (!type) throw RequestError::bad_field(where + ".type", "is required", "missing_field");
    if (*type != "text")
      throw RequestError::unsupported(where + ".type",
                                      fmt::format("only \"text\" parts are supported, not \"{}\"", *type));
    auto piece = part.string("text");
    if (!piece) throw RequestError::bad_field(where + ".text", "is required", "missing_field");
    result.push_back({*std::move(piece)});
  }
  return result;
}

Message parse_message(const JsonObject& message, const std::string& where) {
  const JsonFields f(message, where + ".");
  auto role = f.string("role");
  if (!role || role->empty()) throw RequestError::bad_field(where + ".role", "is required", "missing_field");
  if (*role == "tool" || *role == "function")
    throw RequestError::unsupported(where + ".role", fmt::format("role \"{}\" is not supported yet", *role));
  for (const char* name : {"tool_calls", "function_call", "audio"})
    if (const Json* value = f.find(name); value && !is_empty(*value)) throw RequestError::unsupported(f.path(name));
  // OpenAI's newer name for the system role; templates know the older one.
  if (*role == "developer") role = "system";
  const Json* content = f.find("content");
  if (content == nullptr) throw RequestError::bad_field(where + ".content", "is required", "missing_field");
  return {.role = *std::move(role), .content = content_parts(*content, where + ".content")};
}

std::vector<Prompt> parse_prompts(const JsonFields& f, const RequestLimits& limits) {
  const Json* prompt = f.find("prompt");
  if (prompt == nullptr) throw RequestError::bad_field("prompt", "is required", "missing_field");
  if (prompt->is_string()) return {to_string(*prompt)};
  const JsonArray* elements = prompt->if_array();
  if (elements == nullptr)
    throw RequestError::bad_field("prompt", "must be a string, a list of strings, a token array or a list of them",
                                  "invalid_type");
  if (elements->empty()) throw RequestError::bad_field("prompt", "must not be empty");
  if (looks_like_tokens(*prompt)) return {token_array(*prompt, "prompt", limits.n_vocab)};
  if (std::cmp_greater(elements->size(), limits.max_prompts))
    throw RequestError::bad_field("prompt", fmt::format("at most {} prompts", limits.max_prompts));
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < elements->size(); ++i) {
    const Json& element = (*elements)[i];
    const std::string where = fmt::format("prompt[{}]", i);
    if (element.is_string()) {
      prompts.emplace_back(to_string(element));
    } else if (element.is_array()) {
      prompts.emplace_back(token_array(element, where, limits.n_vocab));
    } else {
      throw RequestError::bad_field(where, "must be a string or a token array", "invalid_type");
    }
  }
  return prompts;
}

std::vector<std::string> parse_stops(const JsonFields& f) {
  const Json* stop = f.find("stop");
  if (stop == nullptr) return {};
  std::vector<std::string> stops;
  if (stop->is_string()) {
    stops.push_back(to_string(*stop));
  } else if (const JsonArray* elements = stop->if_array()) {
    for (const Json& element : *elements) {
      if (!element.is_string()) throw RequestError::bad_field("stop", "must hold strings only", "invalid_type");
      stops.push_back(to_string(element));
    }
  } else {
    throw RequestError::bad_field("stop", "must be a string or a list of strings", "invalid_type");
  }
  if (stops.size() > kMaxStops) throw RequestError::bad_field("stop", fmt::format("at most {} strings", kMaxStops));
  for (const std::string& s : stops) {
    if (s.empty()) throw RequestError::bad_field("stop", "a stop string must not be empty");
    if (s.size() > sampling::kMaxStopBytes)
      throw RequestError::bad_field("stop", fmt::format("a stop string has at most {} bytes", sampling::kMaxStopBytes));
  }
  return stops;
}

std::unordered_map<kv::Token, float> parse_logit_bias(const JsonFields& f, std::int32_t n_vocab) {
  const Json* field = f.find("logit_bias");
  if (field == nullptr) return {};
  const JsonObject* bias = field->if_object();
  if (bias == nullptr)
    throw RequestError::bad_field("logit_bias", "must be an object of token id to bias", "invalid_type");
  if (bias->size() > sampling::kMaxLogitBias)
    throw RequestError::bad_field("logit_bias", fmt::format("at most {} tokens", sampling::kMaxLogitBias));
  std::unordered_map<kv::Token, float> result;
  for (const auto& entry : *bias) {
    const std::string_view key = entry.key();
    const Json& value = entry.value();
    kv::Token token = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 || token >= n_vocab)
      throw RequestError::bad_field("logit_bias", fmt::format("a key must be a token id in [0, {})", n_vocab));
    if (!value.is_number()) throw RequestError::bad_field("logit_bias", "a bias must be a number", "invalid_type");
    const double x = value.to_number<double>();
    if (!(x >= -100 && x <= 100)) throw RequestError::bad_field("logit_bias", "a bias must be between -100 and 100");
    result[token] = static_cast<float>(x);
  }
  return result;
}

/// Chat says `logprobs: true, top_logprobs: n`, completions say `logprobs: n`. Both become n, or -1 for none.
int parse_logprobs(const JsonFields& f, Endpoint endpoint) {
  constexpr int kMax = sampling::kMaxTopLogprobs;
  if (endpoint == Endpoint::kCompletions) return static_cast<int>(f.integer("logprobs", 0, kMax).value_or(-1));
  const bool wanted = f.boolean("logprobs").value_or(false);
  const auto top = f.integer("top_logprobs", 0, kMax);
  if (top && *top > 0 && !wanted) throw RequestError::bad_field("top_logprobs", "needs 'logprobs' to be true");
  return wanted ? static_cast<int>(top.value_or(0)) : -1;
}

sampling::SamplingParams parse_sampling(const JsonFields& f, Endpoint endpoint, std::int32_t n_vocab) {
  sampling::SamplingParams p;
  const auto set = [&f](float& to, const char* name, double min, double max) {
    if (const auto value = f.number(name, min, max)) to = static_cast<float>(*value);
  };
  set(p.temperature, "temperature", 0, 100);
  set(p.top_p, "top_p", 0, 1);
  if (f.has("top_p") && p.top_p <= 0) throw RequestError::bad_field("top_p", "must be above 0 and at most 1");
  set(p.min_p, "min_p", 0, 1);
  set(p.presence_penalty, "presence_penalty", -2, 2);
  set(p.frequency_penalty, "frequency_penalty", -2, 2);
  for (const char* name : {"repetition_penalty", "repeat_penalty"}) {  // vLLM's name, llama-server's name
    set(p.repeat_penalty, name, 0, kInf);
    if (f.has(name) && !(p.repeat_penalty >= 1e-3F && p.repeat_penalty <= 1e3F))
      throw RequestError::bad_field(name, "must be between 0.001 and 1000");
  }
  // -1 is vLLM's "off", 0 llama-server's.
  p.top_k = static_cast<int>(f.integer("top_k", -1, std::numeric_limits<std::int32_t>::max()).value_or(0));
  if (const auto seed =
          f.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()))
    p.seed = static_cast<std::uint64_t>(*seed);
  p.logit_bias = parse_logit_bias(f, n_vocab);
  p.stop = parse_stops(f);
  p.ignore_eos = f.boolean("ignore_eos").value_or(false);
  p.logprobs = parse_logprobs(f, endpoint);
  return p;
}

/// `least`: 0 where the prompt alone makes an answer.
std::optional<std::int32_t> parse_max_tokens(const JsonFields& f, std::int64_t least) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const auto older = f.integer("max_tokens", least, kMax);
  const auto newer = f.integer("max_completion_tokens", least, kMax);
  if (!older && !newer) return std::nullopt;
  return static_cast<std::int32_t>(newer ? *newer : *older);
}

void parse_stream(const JsonFields& f, GenerationRequest& r) {
  r.stream = f.boolean("stream").value_or(false);
  const Json* options = f.find("stream_options");
  if (options == nullptr) return;
  const JsonObject* object = options->if_object();
  if (object == nullptr) throw RequestError::bad_field("stream_options", "must be an object", "invalid_type");
  if (!r.stream) throw RequestError::bad_field("stream_options", "needs 'stream' to be true");
  r.stream_usage = JsonFields(*object, "stream_options.").boolean("include_usage").value_or(false);
}

void parse_completion_input(const JsonFields& f, const RequestLimits& limits, GenerationRequest& r) {
  r.input_field = "prompt";
  r.prompts = parse_prompts(f, limits);
  r.echo = f.boolean("echo").value_or(false);
}

/// vLLM's prompt_logprobs; and the echo's, which OpenAI's completions have.
void parse_prompt_logprobs(const JsonFields& f, GenerationRequest& r) {
  r.prompt_logprobs = static_cast<int>(f.integer("prompt_logprobs", 0, sampling::kMaxTopLogprobs).value_or(-1));
  r.sampling.logprobs_of_end = r.echo && r.sampling.logprobs >= 0;
  if (r.stream && r.prompt_logprobs >= 0)
    throw RequestError::unsupported("prompt_logprobs", "not supported together with 'stream'");
  if (r.stream && r.sampling.logprobs_of_end)
    throw RequestError::unsupported("echo", "not supported together with 'logprobs' and 'stream'");
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  const auto from = f.integer("prompt_logprobs_from", 0, kMax);
  if (from && r.prompt_logprobs < 0 && !r.sampling.logprobs_of_end)
    throw RequestError::bad_field("prompt_logprobs_from", "needs 'prompt_logprobs', or 'echo' with 'logprobs'");
  r.logprobs_from = static_cast<std::int32_t>(from.value_or(0));
}

}  // namespace

std::vector<Message> parse_messages(const Json& messages) {
  const JsonArray* list = messages.if_array();
  if (list == nullptr) throw RequestError::bad_field("messages", "must be a list", "invalid_type");
  if (list->empty()) throw RequestError::bad_field("messages", "must not be empty");
  std::vector<Message> result;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    result.push_back(parse_message(object_at(*list, i, where), where));
  }
  return result;
}

GenerationRequest parse_openai_request(Endpoint endpoint, const JsonObject& body, const RequestLimits& limits) {
  const JsonFields f(body);
  GenerationRequest r;
  refuse_unbuilt(f);
  r.model = f.string("model").value_or("");
  r.sampling = parse_sampling(f, endpoint, limits.n_vocab);
  if (endpoint == Endpoint::kChat) {
    const Json* messages = f.find("messages");
    if (messages == nullptr) throw RequestError::bad_field("messages", "is required", "missing_field");
    r.messages = parse_messages(*messages);
    r.add_generation_prompt = f.boolean("add_generation_prompt").value_or(true);
  } else {
    parse_completion_input(f, limits, r);
  }
  r.n = static_cast<int>(f.integer("n", 1, limits.max_choices).value_or(1));
  if (const auto best_of = f.integer("best_of", 1, limits.max_choices); best_of && *best_of != r.n)
    throw RequestError::unsupported("best_of", "only a value equal to 'n' is supported");
  parse_stream(f, r);
  parse_prompt_logprobs(f, r);
  r.max_tokens = parse_max_tokens(f, r.echo || r.prompt_logprobs >= 0 ? 0 : 1);
  r.cache_salt = f.string("cache_salt").value_or("");
  constexpr std::int64_t kFirst = std::numeric_limits<std::int32_t>::min();
  r.priority = static_cast<std::int32_t>(f.integer("priority", kFirst, -(kFirst + 1)).value_or(0));
  r.timeout_seconds = f.number("timeout", 0, kMaxTimeoutSeconds);
  if (r.timeout_seconds && *r.timeout_seconds <= 0)
    throw RequestError::bad_field("timeout", "must be above 0, in seconds");
  r.cache_report = f.boolean("cache_report").value_or(false);
  f.string("user");  // a label for abuse reports: its type is checked, its value has no use here
  return r;
}

}  // namespace coppice::server
