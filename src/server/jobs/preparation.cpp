#include "server/jobs/preparation.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "server/base/request_error.h"
#include "server/jobs/prompt_text.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

using Tokens = std::vector<kv::Token>;

std::shared_ptr<const sampling::SharedParams> shared_params(sampling::SamplingParams params, std::int32_t n_vocab) {
  try {
    return std::make_shared<const sampling::SharedParams>(std::move(params), n_vocab);
  } catch (const sampling::ParamError& e) {
    throw RequestError(400, e.what(), e.field(), "invalid_value");
  }
}

std::string echo_text(const Model& model, const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return text::to_utf8(model.detokenize(std::get<Tokens>(prompt), true));
}

}  // namespace

Preparation::Preparation(Model& model, GenerationRequest request) : model_(model), asked_(std::move(request)) {
  if (asked_.messages.empty() && asked_.prompts.empty())
    throw RequestError::bad_field(asked_.input_field, "must not be empty");
  prepared_.sampling = shared_params(std::move(asked_.sampling), model.facts().n_vocab);
}

bool Preparation::step() {
  if (!asked_.messages.empty())
    add(tokens_of(chat_text(model_, std::move(asked_.messages), asked_.add_generation_prompt, asked_.input_field)));
  for (std::size_t bytes = 0; prepared_.requests.size() < asked_.prompts.size();) {
    if (bytes >= kStepBytes) return false;
    const Prompt& prompt = asked_.prompts[prepared_.requests.size()];
    const auto* text = std::get_if<std::string>(&prompt);
    bytes += text ? text->size() : std::get<Tokens>(prompt).size() * sizeof(kv::Token);
    add(text ? tokens_of(*text) : std::get<Tokens>(prompt));
    if (asked_.echo) prepared_.echoes.push_back(echo_text(model_, prompt));
  }
  return true;
}

Prepared Preparation::take() {
  prepared_.terms = static_cast<GenerationTerms&&>(asked_);
  return std::move(prepared_);
}

/// Names of special tokens count as these: whoever brings a chat template of their own writes them into the
/// prompt (llama-server and vLLM do the same).
Tokens Preparation::tokens_of(std::string_view text) const {
  return text_tokens(model_.facts(), text, asked_.input_field,
                     [&](std::size_t most) { return model_.prompt_tokens(text, asked_.cache_salt, most); });
}

void Preparation::add(Tokens tokens) {
  check_prompt(model_.facts(), tokens.size(), asked_.input_field, /*answers=*/asked_.max_tokens != 0);
  engine::Request& request = prepared_.requests.emplace_back();
  request.id = model_.next_id();
  request.max_tokens = asked_.max_tokens;
  request.cache_salt = asked_.cache_salt;
  request.priority = asked_.priority;
  request.cache_report = asked_.cache_report;
  const int n_top = std::max(asked_.prompt_logprobs, asked_.echo ? prepared_.sampling->params.logprobs : -1);
  if (n_top >= 0) request.scoring = {.scorer = model_.scorer(), .from = asked_.logprobs_from, .n_top = n_top};
  request.samples = model_.make_generations(prepared_.sampling, asked_.n, tokens);
  request.prompt = std::move(tokens);
}

}  // namespace coppice::server
