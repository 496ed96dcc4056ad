// Bodies of a mebibyte: none may take more than a second of a thread that all requests share.
//
// An input's first byte picks the endpoint. What stands between the two '~' of the rest is repeated until the body has
// a mebibyte; a '#' in it becomes the number of the repetition. Under sanitizers it has an eighth of that: a mebibyte
// of messages takes them 20 s.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/watchdog.h"
#include "server/api/anthropic/anthropic_dialect.h"
#include "server/api/cache/prefix_dialect.h"
#include "server/api/embeddings/embedding_dialect.h"
#include "server/api/llama/llama_dialect.h"
#include "server/api/responses/responses_dialect.h"
#include "server/api/tokenize.h"
#include "server/base/request_error.h"
#include "server/prepare.h"
#include "server/template_model.h"
#include "support/sanitized.h"
#include "text/mark_vocabulary.h"
#include "text/templates.h"

namespace coppice::testing {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << (test::kSlow ? 17 : 20);
/// Sanitized, still far less than what grows with the square of the bytes may take.
constexpr double kMostSeconds = test::kSlow ? 1.25 : Watchdog::kMostSeconds;

class ExcusedModel final : public TemplateModel {
 public:
  using TemplateModel::TemplateModel;
  /// A byte is a token: tokenizers have tests of their own.
  std::vector<kv::Token> tokenize(const text::MarkedView& text, bool add_special, bool parse_special,
                                  std::size_t most) const override {
    return FakeModel::tokenize(text, add_special, parse_special, most);
  }
  std::shared_ptr<const grammar::Grammar> compile(const grammar::Source& source, double seconds) const override {
    const Watchdog::Excuse excuse;
    return TemplateModel::compile(source, seconds);
  }
};

ExcusedModel& model() {
  static ExcusedModel made = [] {
    const std::string source = text::text_of_template("Qwen-Qwen3-0.6B");
    return ExcusedModel(test::mark_vocabulary(test::marks_in(source)), source);
  }();
  made.facts_.n_embd = 4;
  return made;
}

/// Empty: it has no part to repeat.
std::string stretched(std::string_view text) {
  const std::size_t begin = text.find('~'), end = text.find('~', begin + 1);
  if (end == text.npos) return "";
  const std::string_view part = text.substr(begin + 1, end - begin - 1), rest = text.substr(end + 1);
  if (part.empty()) return "";
  std::string body(text.substr(0, begin));
  for (std::size_t n = 0; body.size() + rest.size() < kBytes; ++n)
    for (const char c : part) c == '#' ? body += std::to_string(n) : body += c;
  return body.append(rest);
}

void run(int what, std::string_view body) {
  static server::ResponseStore store(std::size_t{64} << 10);
  const Watchdog watchdog(kMostSeconds);
  try {
    switch (what % 12) {
      case 0:
        prepare(model(), server::Endpoint::kChat, body);
        return;
      case 1:
        prepare(model(), server::Endpoint::kCompletions, body);
        return;
      case 2:
        prepare(model(), server::LlamaDialect(), body);
        return;
      case 3:
        prepare(model(), server::AnthropicDialect(), body);
        return;
      case 4:
        prepare(model(), server::ResponsesDialect(store), body);
        return;
      case 5:
        prepare(model(), server::EmbeddingDialect(server::EmbeddingForm::kOpenAi), body);
        return;
      case 6:
        server::template_reply(model(), body);
        return;
      case 7:
        server::anthropic_count_reply(model(), body);
        return;
      case 10:
        prepare(model(), server::PrefixDialect(), body);
        return;
      case 11:
        server::count_reply(model(), body);
        return;
      default:
        what % 12 == 8 ? server::tokenize_reply(model(), body) : server::detokenize_reply(model(), body);
        return;
    }
  } catch (const server::RequestError& e) {
    if (e.status() < 400 || e.status() > 499) finding("a client's fault that is none");
  }
}

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string body = coppice::testing::stretched({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!body.empty()) coppice::testing::run(data[0] - '0', body);
  return 0;
}
