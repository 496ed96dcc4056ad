// A field that isn't for the sampler, as cache_prompt: parse_engine_fields(), GenerationTerms
// (server/jobs/generation_request.h), copied in Preparation::add() to engine::Request. How much of a prompt may come
// from the cache: Sequence::matchable().
#include "server/api/base/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/request_error.h"

namespace coppice::server {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxStops = 16;
constexpr double kMaxTimeoutSeconds = 1e8;  // three years: it still fits the clock

constexpr std::size_t kMaxWordBytes = 4096;  // of a text that stands for tokens, as sampling::kMaxStopBytes
constexpr std::size_t kMaxWordsBytes = std::size_t{64} << 10;  // of all of one field

/// The words of one field: all are tokenized in one turn of the worker.
class WordLimit {
 public:
  explicit WordLimit(const char* field) : field_(field) {}
  void add(std::string_view word) {
    bytes_ += word.size();
    if (word.size() > kMaxWordBytes)
      throw RequestError::bad_field(field_, fmt::format("a text has at most {} bytes", kMaxWordBytes));
    if (bytes_ > kMaxWordsBytes)
      throw RequestError::bad_field(field_, fmt::format("all texts together have at most {} bytes", kMaxWordsBytes));
  }

 private:
  const char* field_;
  std::size_t bytes_ = 0;
};

/// OpenAI's object of token ids, llama-server's object or list of pairs: also with texts, and with false for never.
class BiasParser {
 public:
  BiasParser(std::int32_t n_vocab, GenerationRequest& r) : n_vocab_(n_vocab), r_(r) {}

  void parse(const Json& field) {
    const JsonObject* object = field.if_object();
    const JsonArray* pairs = field.if_array();
    if (object == nullptr && pairs == nullptr) refuse_form();
    if ((object ? object->size() : pairs->size()) > sampling::kMaxLogitBias)
      throw RequestError::bad_field("logit_bias", fmt::format("at most {} tokens", sampling::kMaxLogitBias));
    if (object != nullptr) {
      for (const auto& entry : *object) add(entry.key(), bias_of(entry.value()));
      return;
    }
    for (const Json& element : *pairs) {
      const JsonArray* pair = element.if_array();
      if (pair == nullptr || pair->size() != 2) refuse_form();
      const Json& token = pair->front();
      const float bias = bias_of(pair->back());
      if (const auto id = whole_number(token)) {
        add(*id, bias);
      } else if (token.is_string()) {
        add(std::string_view(token.get_string()), bias);
      } else {
        refuse_form();
      }
    }
  }

 private:
  [[noreturn]] static void refuse_form() {
    throw RequestError::bad_field("logit_bias", "must be an object of token to bias, or a list of [token, bias]",
                                  "invalid_type");
  }
  /// vLLM reads numbers in texts, too.
  static std::optional<double> number_in(std::string_view text) {
    boost::system::error_code error;
    const Json number = boost::json::parse(text, error);
    return !error && number.is_number() ? std::optional(number.to_number<double>()) : std::nullopt;
  }
  static float bias_of(const Json& value) {
    if (value.is_bool() && !value.get_bool()) return sampling::kNever;
    const std::optional<double> number = value.is_string()   ? number_in(value.get_string())
                                         : value.is_number() ? std::optional(value.to_number<double>())
                                                             : std::nullopt;
    if (!number) throw RequestError::bad_field("logit_bias", "a bias must be a number, or false", "invalid_type");
    const double x = *number;
    if (!(x >= -100 && x <= 100)) throw RequestError::bad_field("logit_bias", "a bias must be between -100 and 100");
    return static_cast<float>(x);
  }
  void add(std::int64_t token, float bias) {
    if (token < 0 || token >= n_vocab_)
      throw RequestError::bad_field("logit_bias", fmt::format("a token id must be in [0, {})", n_vocab_));
    r_.sampling.logit_bias[static_cast<kv::Token>(token)] = bias;
  }
  void add(std::string_view text, float bias) {
    std::int64_t token = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), token);
    if (!text.empty() && end == text.data() + text.size()) {
      add(error == std::errc() ? token : -1, bias);
    } else {
      limit_.add(text);
      r_.text_bias.emplace_back(text, bias);
    }
  }

  std::int32_t n_vocab_;
  GenerationRequest& r_;
  WordLimit limit_{"logit_bias"};
};

std::vector<std::string> parse_bad_words(const JsonFields& f) {
  const Json* field = f.find("bad_words");
  if (field == nullptr) return {};
  const JsonArray* list = field->if_array();
  if (list == nullptr) throw RequestError::bad_field("bad_words", "must be a list of strings", "invalid_type");
  if (list->size() > sampling::kMaxBadWords / 2)
    throw RequestError::bad_field("bad_words", fmt::format("at most {} words", sampling::kMaxBadWords / 2));
  std::vector<std::string> words;
  WordLimit limit("bad_words");
  for (const Json& word : *list) {
    if (!word.is_string()) throw RequestError::bad_field("bad_words", "must hold strings only", "invalid_type");
    if (std::string_view(word.get_string()).find_first_not_of(' ') == std::string_view::npos)
      throw RequestError::bad_field("bad_words", "a word must not be empty");
    limit.add(std::string_view(word.get_string()));
    words.push_back(to_string(word));
  }
  return words;
}

std::vector<kv::Token> parse_token_list(const JsonFields& f, const char* name, std::int32_t n_vocab) {
  const Json* field = f.find(name);
  return field == nullptr ? std::vector<kv::Token>() : token_array(*field, name, n_vocab);
}

bool is_off(const Json& value, const UnbuiltField& field) {
  if (is_empty(value)) return true;
  if (value.is_bool()) return (value.get_bool() ? 1.0 : 0.0) == field.off;
  if (!value.is_number()) return false;
  const double x = value.to_number<double>();
  using Also = UnbuiltField::Also;
  return x == field.off || (field.also == Also::kBelow && x < field.off) ||
         (field.also == Also::kAbove && x > field.off);
}

constexpr auto kBelow = UnbuiltField::Also::kBelow;

/// llama-server's, then vLLM's.
constexpr UnbuiltField kUnbuiltSamplers[] = {
    {"mirostat"},
    {"dry_multiplier"},
    {"xtc_probability"},
    {.name = "typical_p", .off = 1},
    {.name = "tfs_z", .off = 1},  // llama-server's once
    {.name = "top_n_sigma", .off = 0, .also = kBelow},
    {"dynatemp_range"},
    {.name = "adaptive_target", .off = -1, .also = kBelow},
    {.name = "min_keep", .off = 1, .also = kBelow},
    {.name = "n_indent", .off = 0, .also = kBelow},
    {.name = "t_max_predict_ms", .off = 0, .also = kBelow},
    {"lora"},
    {"use_beam_search"},
    {.name = "length_penalty", .off = 1},
    {"include_stop_str_in_output"},
    {"logits_processors"},
    {"return_tokens_as_token_ids"},
    {"return_token_ids"},
    {"kv_transfer_params"},
    {"vllm_xargs"},
    {"repetition_detection"},
};

/// Our order is fixed; the shorter name is this server's own.
void check_samplers(const JsonFields& f) {
  const Json* samplers = f.find("samplers");
  if (samplers == nullptr || is_empty(*samplers)) return;
  if (*samplers != Json(JsonArray{"penalties", "temperature", "top_k", "top_p", "min_p"}))
    throw RequestError::unsupported(
        "samplers", "only [\"penalties\", \"temperature\", \"top_k\", \"top_p\", \"min_p\"] is supported");
}

/// Penalties count the whole text here.
void check_penalty_window(const JsonFields& f, const sampling::SamplingParams& p) {
  const auto window = f.integer("repeat_last_n", -1, kMaxInt);
  const bool penalised = p.repeat_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
  if (window && *window >= 0 && penalised)
    throw RequestError::unsupported("repeat_last_n", "only -1, all of the text, is supported");
}

}  // namespace

bool is_empty(const Json& value) {
  const JsonArray* array = value.if_array();
  const JsonObject* object = value.if_object();
  const auto* string = value.if_string();
  return (array && array->empty()) || (object && object->empty()) || (string && string->empty());
}

void apply_defaults(const GenerationDefaults& defaults, GenerationRequest& r) {
  sampling::SamplingParams& p = r.sampling;
  p.temperature = defaults.temperature.value_or(p.temperature);
  p.top_k = defaults.top_k.value_or(p.top_k);
  p.top_p = defaults.top_p.value_or(p.top_p);
  p.min_p = defaults.min_p.value_or(p.min_p);
  p.repeat_penalty = defaults.repeat_penalty.value_or(p.repeat_penalty);
  p.presence_penalty = defaults.presence_penalty.value_or(p.presence_penalty);
  p.frequency_penalty = defaults.frequency_penalty.value_or(p.frequency_penalty);
  if (defaults.seed) p.seed = defaults.seed;
  r.max_tokens = defaults.max_tokens;
  r.thought_budget = defaults.thought_budget;
}

void refuse_unbuilt(const JsonFields& f, std::span<const UnbuiltField> fields) {
  for (const UnbuiltField& field : fields)
    if (const Json* value = f.find(field.name); value && !is_off(*value, field))
      throw RequestError::unsupported(f.path(field.name));
}

void refuse_unbuilt_samplers(const JsonFields& f) {
  refuse_unbuilt(f, kUnbuiltSamplers);
  check_samplers(f);
}

void refuse_openai_fields(const JsonFields& f) {
  constexpr UnbuiltField kForeign[] = {{.name = "n", .off = 1}, {"logprobs"},        {"top_logprobs"},
                                       {"post_sampling_probs"}, {"response_format"}, {"structured_outputs"},
                                       {"json_schema"},         {"grammar"},         {"guided_json"},
                                       {"guided_regex"},        {"guided_choice"},   {"guided_grammar"}};
  refuse_unbuilt(f, kForeign);
}

std::vector<std::string> parse_stops(const JsonFields& f, const char* name) {
  const Json* stop = f.find(name);
  if (stop == nullptr) return {};
  std::vector<std::string> stops;
  if (stop->is_string()) {
    stops.push_back(to_string(*stop));
  } else if (const JsonArray* elements = stop->if_array()) {
    for (const Json& element : *elements) {
      if (!element.is_string()) throw RequestError::bad_field(name, "must hold strings only", "invalid_type");
      stops.push_back(to_string(element));
    }
  } else {
    throw RequestError::bad_field(name, "must be a string or a list of strings", "invalid_type");
  }
  if (stops.size() > kMaxStops) throw RequestError::bad_field(name, fmt::format("at most {} strings", kMaxStops));
  for (const std::string& s : stops) {
    if (s.empty()) throw RequestError::bad_field(name, "a stop string must not be empty");
    if (s.size() > sampling::kMaxStopBytes)
      throw RequestError::bad_field(name, fmt::format("a stop string has at most {} bytes", sampling::kMaxStopBytes));
  }
  return stops;
}

void parse_sampling_fields(const JsonFields& f, const RequestLimits& limits, GenerationRequest& r) {
  sampling::SamplingParams& p = r.sampling;
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
  for (const char* name : {"reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"}) {
    if (const auto budget = f.integer(name, -1, kMaxInt)) {
      r.thought_budget = static_cast<std::int32_t>(*budget);
      r.thought_budget_field = name;
    }
  }
  // -1 is vLLM's "off", 0 llama-server's.
  p.top_k = static_cast<int>(f.integer("top_k", -1, kMaxInt).value_or(p.top_k));
  if (const auto seed =
          f.integer("seed", std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()))
    p.seed = *seed == -1 || *seed == kRandomSeed ? std::nullopt : std::optional(static_cast<std::uint64_t>(*seed));
  if (const Json* bias = f.find("logit_bias")) BiasParser(limits.n_vocab, r).parse(*bias);
  p.stop = parse_stops(f, "stop");
  p.stop_tokens = parse_token_list(f, "stop_token_ids", limits.n_vocab);
  if (f.has("allowed_token_ids")) {
    p.allowed_tokens = parse_token_list(f, "allowed_token_ids", limits.n_vocab);
    if (p.allowed_tokens.empty()) throw RequestError::bad_field("allowed_token_ids", "must not be empty");
  }
  r.bad_words = parse_bad_words(f);
  p.min_tokens = static_cast<std::int32_t>(f.integer("min_tokens", 0, kMaxInt).value_or(0));
  p.ignore_eos = f.boolean("ignore_eos").value_or(false);
  p.show_special = !f.boolean("skip_special_tokens").value_or(true);
  parse_truncation(f, r);
  check_penalty_window(f, p);
}

void parse_max_tokens(const JsonFields& f, std::initializer_list<const char*> names, std::int64_t least,
                      GenerationRequest& r) {
  std::optional<std::int64_t> first;
  for (const char* name : names) {
    const auto value = f.integer(name, -1, kMaxInt);
    if (value && *value >= 0 && *value < least)
      throw RequestError::bad_field(f.path(name), fmt::format("must be at least {}, or -1", least));
    if (!first) first = value;
  }
  if (!first) return;
  r.max_tokens.reset();
  if (*first >= 0) r.max_tokens = static_cast<std::int32_t>(*first);
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

void parse_truncation(const JsonFields& f, GenerationRequest& r) {
  const auto kept = f.integer("truncate_prompt_tokens", -1, kMaxInt);
  if (!kept) return;
  if (*kept == 0) throw RequestError::bad_field("truncate_prompt_tokens", "must be at least 1, or -1");
  r.keep_last = *kept == -1 ? 0 : static_cast<std::int32_t>(*kept);
}

void parse_engine_fields(const JsonFields& f, GenerationRequest& r) {
  r.cache_salt = f.string("cache_salt").value_or("");
  constexpr std::int64_t kFirst = std::numeric_limits<std::int32_t>::min();
  r.priority = static_cast<std::int32_t>(f.integer("priority", kFirst, -(kFirst + 1)).value_or(0));
  r.timeout_seconds = f.number("timeout", 0, kMaxTimeoutSeconds);
  if (r.timeout_seconds && *r.timeout_seconds <= 0)
    throw RequestError::bad_field("timeout", "must be above 0, in seconds");
  r.cache_report = f.boolean("cache_report").value_or(false);
  r.match_cache = f.boolean("cache_prompt").value_or(true);
}

}  // namespace coppice::server
