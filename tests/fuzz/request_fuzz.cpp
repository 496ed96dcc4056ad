// Bodies: through the JSON reader and the checks to engine requests. An input's first byte picks the endpoint.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/watchdog.h"
#include "server/api/anthropic/anthropic_dialect.h"
#include "server/api/cache/prefix_dialect.h"
#include "server/api/embeddings/embedding_dialect.h"
#include "server/api/llama/llama_dialect.h"
#include "server/api/openai/openai_answer.h"
#include "server/api/responses/responses_dialect.h"
#include "server/api/tokenize.h"
#include "server/base/request_error.h"
#include "server/fake_model.h"
#include "server/prepare.h"
#include "text/utf8_stream.h"
#include "text/vocabulary.h"
#include "vision/pictures.h"

namespace coppice::testing {
namespace {

/// It sees pictures with a tiny projector.
class ExcusedModel final : public FakeModel {
 public:
  using FakeModel::FakeModel;
  vision::Pictures* pictures() const override { return &pictures_; }
  std::shared_ptr<const grammar::Grammar> compile(const grammar::Source& source, double seconds) const override {
    const Watchdog::Excuse excuse;
    return FakeModel::compile(source, seconds);
  }

 private:
  text::Vocabulary vocabulary_{COPPICE_VISION_FIXTURE "/model.gguf"};
  mutable vision::Pictures pictures_{std::make_unique<vision::Projector>(COPPICE_VISION_FIXTURE "/mmproj.gguf",
                                                                         vocabulary_, 32, vision::ProjectorOptions{}),
                                     {.most_pixels = 1 << 16, .row_bytes = 1 << 16}};
};

void check(const FakeModel& model, const server::Prepared& prepared) {
  const server::ModelFacts& facts = model.facts();
  if (prepared.requests.empty()) finding("a request without requests");
  for (const engine::Request& request : prepared.requests) {
    const std::ptrdiff_t room = request.max_tokens == 0 ? 0 : 1;
    if (request.prompt.empty() ||
        std::ssize(request.prompt.view().bits()) + room > std::ptrdiff_t{facts.context_length})
      finding("a prompt that cannot fit");
    for (const kv::Token token : request.prompt.view().tokens())
      if (token < 0 || token >= facts.n_vocab) finding("a token that does not exist");
    if (request.samples.empty() || std::ssize(request.samples) > std::ptrdiff_t{facts.max_batch})
      finding("a wrong number of samples");
    if (request.max_tokens.value_or(0) < 0) finding("negative max_tokens");
    // A tenant's salt begins with a byte that is in no UTF-8 text, and nobody else's may.
    if (!text::is_utf8(request.ns.salt)) finding("a salt that is not UTF-8");
    std::int32_t before = 0;
    for (const engine::PinWish& pin : request.pins) {
      if (pin.tokens < before || std::cmp_greater(pin.tokens, request.prompt.size()) || pin.ttl.count() <= 0)
        finding("a pin of what is not there");
      before = pin.tokens;
    }
  }
}

std::string words_of(const server::Message& message) {
  std::string words = message.role + "\n" + message.reasoning + "\n" + message.call_id + "\n";
  for (const server::ContentPart& part : message.content) {
    words += part.text;
    if (part.picture) words.append(part.picture->bytes.begin(), part.picture->bytes.end());
  }
  for (const text::ChatCall& call : message.calls) words += "\n" + call.id + "\n" + call.name + "\n" + call.arguments;
  return words;
}

/// Stores an answer to the request, and goes on from it: that gives the conversation again, all but the instructions.
void check_continuation(server::ResponseStore& store, const server::JsonObject& body,
                        const server::RequestLimits& limits, server::GenerationRequest&& first) {
  server::ResponsesDialect dialect(store);
  const bool stored = std::static_pointer_cast<const server::ResponseTerms>(first.own)->stored != nullptr;
  const auto answer = dialect.begin(first, first.sampling, {.id = "resp_fuzz"});
  answer->delta({.text = "x", .end = {{.finish = sampling::Finish::kStop}}});
  if (!nlohmann::json::accept(answer->end({}, {})) && !first.stream) finding("an answer that is not JSON");
  if (!stored) return;
  const server::JsonObject next = {
      {"input", "y"}, {"previous_response_id", "resp_fuzz"}, {"cache_salt", first.cache_salt}};
  const auto second = dialect.parse(next, limits);
  const auto* instructions = body.if_contains("instructions");
  const std::size_t skip = instructions != nullptr && instructions->is_string() && !instructions->get_string().empty();
  if (second.messages.size() != first.messages.size() - skip + 2) finding("a conversation that is not what it was");
  for (std::size_t i = skip; i < first.messages.size(); ++i)
    if (words_of(first.messages[i]) != words_of(second.messages[i - skip]))
      finding("a message that is not what it was");
  store.remove("resp_fuzz", {"", first.cache_salt});
}

void check_responses(FakeModel& model, std::string_view body) {
  static server::ResponseStore store(std::size_t{64} << 10);
  const server::ResponsesDialect dialect(store);
  check(model, prepare(model, dialect, body));
  const auto json = server::parse_body(body, server::json_limits(model.facts().context_length));
  const server::RequestLimits limits = server::request_limits(model.facts());
  check_continuation(store, json, limits, dialect.parse(json, limits));
  if (store.figures().bytes != 0) finding("bytes of what is not there");
}

constexpr int kEndpoints = 11;

void run(int what, std::string_view body) {
  static ExcusedModel model([](std::vector<engine::Event>&&) {});
  const Watchdog watchdog;
  model.facts_.n_embd = 4;
  model.facts_.most_pictures = body.size() % 3 == 0 ? 0 : 2;
  const auto check_reply = [&](std::string (*reply)(const server::Model&, std::string_view)) {
    if (!nlohmann::json::accept(reply(model, body))) finding("a reply that is not JSON");
  };
  const int endpoint = what % kEndpoints;
  try {
    switch (endpoint) {
      case 0:
        return check(model, prepare(model, server::Endpoint::kChat, body));
      case 1:
        return check(model, prepare(model, server::Endpoint::kCompletions, body));
      case 2:
        return check_reply(server::tokenize_reply);
      case 3:
        return check_reply(server::detokenize_reply);
      case 4:
        return check(model, prepare(model, server::LlamaDialect(), body));
      case 5:
        return check_reply(server::template_reply);
      case 6:
        return check(model, prepare(model, server::AnthropicDialect(), body));
      case 7:
        return check_reply(server::anthropic_count_reply);
      case 8:
        return check_responses(model, body);
      case 9:
        return check(model, prepare(model, server::PrefixDialect(), body));
      default:
        return check(model, prepare(model, server::EmbeddingDialect(server::EmbeddingForm::kOpenAi), body));
    }
  } catch (const server::RequestError& e) {
    if (e.status() < 400 || e.status() > 499) finding("a client's fault that is none");
    const bool anthropic = endpoint == 6 || endpoint == 7;
    const std::string error = endpoint == 4 ? server::llama_error(e)
                              : anthropic   ? server::AnthropicDialect().error(e)
                                            : server::openai_error(e);
    if (nlohmann::json::parse(error)["error"]["message"].get<std::string>().empty())
      finding("an error without a message");
  }
}

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  coppice::testing::run(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
