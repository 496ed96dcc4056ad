#include "server/jobs/preparation.h"

#include <variant>

#include "server/base/request_error.h"
#include "server/jobs/prompt_text.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

using Tokens = std::vector<kv::Token>;

std::shared_ptr<const sampling::SharedParams> shared_params(const sampling::SamplingParams& params,
                                                            std::int32_t n_vocab) {
  try {
    return std::make_shared<const sampling::SharedParams>(params, n_vocab);
  } catch (const sampling::ParamError& e) {
    throw RequestError(400, e.what(), e.field(), "invalid_value");
  }
}

std::string echo_text(const Model& model, const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  return text::to_utf8(model.detokenize(std::get<Tokens>(prompt), true));
}

/// The tokens are there: a request that waits in the queue, or is answered for minutes, must not hold the texts too.
void drop_texts(GenerationRequest& request) {
  request.messages = {};
  request.prompts = {};
  request.sampling = {.logprobs = request.sampling.logprobs};
}

}  // namespace

Preparation::Preparation(Model& model, GenerationRequest request)
    : model_(model), shared_(shared_params(request.sampling, model.facts().n_vocab)) {
  if (request.messages.empty() && request.prompts.empty())
    throw RequestError::bad_field(request.input_field, "must not be empty");
  prepared_.request = std::move(request);
}

bool Preparation::step() {
  GenerationRequest& request = prepared_.request;
  if (!request.messages.empty())
    add(tokens_of(chat_text(model_, std::move(request.messages), request.add_generation_prompt, request.input_field)));
  for (std::size_t bytes = 0; prepared_.requests.size() < request.prompts.size();) {
    if (bytes >= kStepBytes) return false;
    const Prompt& prompt = request.prompts[prepared_.requests.size()];
    const auto* text = std::get_if<std::string>(&prompt);
    bytes += text ? text->size() : std::get<Tokens>(prompt).size() * sizeof(kv::Token);
    add(text ? tokens_of(*text) : std::get<Tokens>(prompt));
    if (request.echo) prepared_.echoes.push_back(echo_text(model_, prompt));
  }
  drop_texts(request);
  return true;
}

/// Names of special tokens count as these: whoever brings a chat template of their own writes them into the
/// prompt (llama-server and vLLM do the same).
Tokens Preparation::tokens_of(std::string_view text) const {
  const GenerationRequest& request = prepared_.request;
  return text_tokens(model_.facts(), text, request.input_field,
                     [&](std::size_t most) { return model_.prompt_tokens(text, request.cache_salt, most); });
}

void Preparation::add(Tokens tokens) {
  const GenerationRequest& asked = prepared_.request;
  check_prompt(model_.facts(), tokens.size(), asked.input_field);
  engine::Request& request = prepared_.requests.emplace_back();
  request.id = model_.next_id();
  request.max_tokens = asked.max_tokens;
  request.cache_salt = asked.cache_salt;
  request.priority = asked.priority;
  request.cache_report = asked.cache_report;
  request.samples = model_.make_generations(shared_, asked.n, tokens);
  request.prompt = std::move(tokens);
}

}  // namespace coppice::server
