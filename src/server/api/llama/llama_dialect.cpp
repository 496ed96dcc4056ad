#include "server/api/llama/llama_dialect.h"

#include <fmt/format.h>

#include <utility>

#include "server/api/base/json_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/base/structured_output.h"
#include "server/api/base/telemetry.h"
#include "server/api/llama/llama_answer.h"
#include "server/api/openai/prompt_list.h"

namespace coppice::server {

namespace {

constexpr UnbuiltField kUnbuiltCompletion[] = {{"suffix"}, {"input_prefix"}};

std::vector<std::string> parse_response_fields(const JsonFields& f) {
  const Json* field = f.find("response_fields");
  if (field == nullptr) return {};
  const JsonArray* list = field->if_array();
  if (list == nullptr) throw RequestError::bad_field("response_fields", "must be a list of strings", "invalid_type");
  std::vector<std::string> fields;
  for (const Json& name : *list) {
    if (!name.is_string()) throw RequestError::bad_field("response_fields", "must hold strings only", "invalid_type");
    fields.emplace_back(name.get_string());
  }
  return fields;
}

const char* error_type(const RequestError& error) {
  if (error.code() == "context_length_exceeded") return "exceed_context_size_error";
  switch (error.status()) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 503:
      return "unavailable_error";
    default:
      return error.status() < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

GenerationRequest llama_defaults(const GenerationDefaults& operators) {
  GenerationRequest r;
  r.input_field = "prompt";
  r.sampling.temperature = 0.8F;
  r.sampling.top_k = 40;
  r.sampling.top_p = 0.95F;
  r.sampling.min_p = 0.05F;
  apply_defaults(operators, r);
  return r;
}

GenerationRequest LlamaDialect::parse(const JsonObject& body, const RequestLimits& limits) const {
  const JsonFields f(body);
  refuse_unbuilt(f, kUnbuiltCompletion);
  refuse_unbuilt_samplers(f);
  GenerationRequest r = llama_defaults(limits.defaults);
  r.model = f.string("model").value_or("");
  parse_sampling_fields(f, limits, r);
  r.grammar = parse_structured_output(f);
  for (const char* name : {"logprobs", "n_probs"})
    if (const auto n = f.integer(name, 0, sampling::kMaxTopLogprobs))
      r.sampling.logprobs = *n > 0 ? static_cast<int>(*n) : -1;
  r.sampling.logprobs_of_drawn = f.boolean("post_sampling_probs").value_or(false);
  parse_max_tokens(f, {"n_predict", "max_completion_tokens", "max_tokens"}, 0, r);
  for (const char* name : {"n", "n_cmpl"}) r.n = static_cast<int>(f.integer(name, 1, limits.max_choices).value_or(r.n));
  LlamaForm form;
  const Json* prompt = f.find("prompt");
  if (prompt == nullptr) throw RequestError::bad_field("prompt", "is required", "missing_field");
  r.prompts = parse_prompt_list(*prompt, "prompt", limits);
  form.list = r.prompts.size() > 1 || r.n > 1;
  form.return_tokens = f.boolean("return_tokens").value_or(false);
  form.response_fields = parse_response_fields(f);
  if (r.sampling.ignore_eos) form.never.assign(limits.end_tokens.begin(), limits.end_tokens.end());
  r.stream = f.boolean("stream").value_or(false);
  r.prompt_text = true;
  parse_engine_fields(f, r);
  r.telemetry = parse_telemetry(f);
  r.own = std::make_shared<const LlamaForm>(std::move(form));
  return r;
}

std::unique_ptr<Answer> LlamaDialect::begin(const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                                            AnswerHead head) const {
  JsonObject settings = llama_settings(terms, sampling, head.context_length);
  const auto form = std::static_pointer_cast<const LlamaForm>(terms.own);
  for (const kv::Token token : form->never)
    settings["logit_bias"].get_array().push_back(JsonObject{{"token", token}, {"bias", nullptr}});
  return std::make_unique<LlamaAnswer>(*form, terms, sampling, std::move(settings), std::move(head));
}

std::string LlamaDialect::error(const RequestError& error) const {
  return llama_error(error);
}

std::string llama_error(const RequestError& error) {
  JsonObject json = {{"code", error.status()}, {"message", error.what()}, {"type", error_type(error)}};
  if (const auto& sizes = error.sizes()) {
    json["message"] = fmt::format("request (at least {} tokens) exceeds the available context size ({} tokens): {}",
                                  sizes->tokens, sizes->context, error.what());
    json["n_prompt_tokens"] = sizes->tokens;
    json["n_ctx"] = sizes->context;
  }
  return dump(JsonObject{{"error", std::move(json)}});
}

JsonObject llama_settings(const GenerationTerms& terms, const sampling::SamplingParams& p,
                          std::int32_t context_length) {
  JsonArray biases;
  for (const auto& [token, bias] : p.logit_bias)
    biases.push_back(JsonObject{{"token", token}, {"bias", bias == sampling::kNever ? Json(nullptr) : Json(bias)}});
  JsonObject json = {{"seed", p.seed ? Json(*p.seed) : Json(kRandomSeed)},
                     {"temperature", p.temperature},
                     {"top_k", p.top_k},
                     {"top_p", p.top_p},
                     {"min_p", p.min_p},
                     {"repeat_penalty", p.repeat_penalty},
                     {"repeat_last_n", -1},
                     {"presence_penalty", p.presence_penalty},
                     {"frequency_penalty", p.frequency_penalty},
                     {"stop", JsonArray(p.stop.begin(), p.stop.end())},
                     {"ignore_eos", p.ignore_eos},
                     {"logit_bias", std::move(biases)},
                     {"n_probs", std::max(p.logprobs, 0)},
                     {"post_sampling_probs", p.logprobs_of_drawn},
                     {"timings_per_token", terms.telemetry.timings},
                     {"n_predict", terms.max_tokens ? Json(*terms.max_tokens) : Json(-1)},
                     {"max_tokens", terms.max_tokens ? Json(*terms.max_tokens) : Json(-1)},
                     {"n_ctx", context_length},
                     {"stream", terms.stream},
                     {"samplers", JsonArray{"penalties", "temperature", "top_k", "top_p", "min_p"}}};
  // What this server doesn't have, as llama-server names it when it is off.
  for (const char* name : {"dynatemp_range", "xtc_probability", "dry_multiplier", "mirostat", "n_keep", "n_discard"})
    json[name] = 0;
  for (const char* name : {"top_n_sigma", "adaptive_target", "min_keep"}) json[name] = -1;
  json["typical_p"] = 1;
  json["adaptive_decay"] = 0.9;
  return json;
}

}  // namespace coppice::server
