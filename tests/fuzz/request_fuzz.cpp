// Bodies: through the JSON reader and the checks to engine requests. An input's first byte picks the endpoint.
#include <nlohmann/json.hpp>
#include <string_view>

#include "fuzz/fuzz.h"
#include "server/api/llama_dialect.h"
#include "server/api/openai_answer.h"
#include "server/api/tokenize.h"
#include "server/base/request_error.h"
#include "server/fake_model.h"
#include "server/prepare.h"
#include "text/utf8_stream.h"

namespace coppice::testing {
namespace {

void check(const FakeModel& model, const server::Prepared& prepared) {
  const server::ModelFacts& facts = model.facts();
  if (prepared.requests.empty()) finding("a request without requests");
  for (const engine::Request& request : prepared.requests) {
    const std::ptrdiff_t room = request.max_tokens == 0 ? 0 : 1;
    if (request.prompt.empty() || std::ssize(request.prompt) + room > std::ptrdiff_t{facts.context_length})
      finding("a prompt that cannot fit");
    for (const kv::Token token : request.prompt)
      if (token < 0 || token >= facts.n_vocab) finding("a token that does not exist");
    if (request.samples.empty() || std::ssize(request.samples) > std::ptrdiff_t{facts.max_batch})
      finding("a wrong number of samples");
    if (request.max_tokens.value_or(0) < 0) finding("negative max_tokens");
    // A tenant's salt begins with a byte that is in no UTF-8 text, and nobody else's may.
    if (!text::is_utf8(request.cache_salt)) finding("a salt that is not UTF-8");
  }
}

void run(int what, std::string_view body) {
  static FakeModel model([](std::vector<engine::Event>&&) {});
  try {
    switch (what % 6) {
      case 0:
        return check(model, prepare(model, server::Endpoint::kChat, body));
      case 1:
        return check(model, prepare(model, server::Endpoint::kCompletions, body));
      case 2:
        if (!nlohmann::json::accept(server::tokenize_reply(model, body))) finding("a reply that is not JSON");
        return;
      case 3:
        if (!nlohmann::json::accept(server::detokenize_reply(model, body))) finding("a reply that is not JSON");
        return;
      case 4:
        return check(model, prepare(model, server::LlamaDialect(), body));
      default:
        if (!nlohmann::json::accept(server::template_reply(model, body))) finding("a reply that is not JSON");
    }
  } catch (const server::RequestError& e) {
    if (e.status() < 400 || e.status() > 499) finding("a client's fault that is none");
    const auto json = nlohmann::json::parse(what % 6 == 4 ? server::llama_error(e) : server::openai_error(e));
    if (json["error"]["message"].get<std::string>().empty()) finding("an error without a message");
  }
}

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  coppice::testing::run(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
