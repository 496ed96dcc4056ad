// Messages: through chat templates, the tokenizer of COPPICE_MODEL, and the one that remembers.
//
// An input's first byte picks the template and whether the assistant's turn is opened. The rest is roles and contents
// in turn, a byte 0x1e after each.
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "text/chat_template.h"
#include "text/prompt_tokenizer.h"
#include "text/utf8_stream.h"
#include "text/vocabulary.h"

namespace coppice::testing {
namespace {

/// Each uses what real templates use; the first is the model's own.
constexpr std::array kTemplates = {
    "",
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] | upper }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[ASSISTANT]{% endif %}",
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate: ' + m.role) }}{% endif %}"
    "{% if loop.first and system %}<<{{ system }}>>{% endif %}{{ m.content }}{% endfor %}",
    "{%- for m in messages -%}{%- set parts = m.content.split('</think>') -%}"
    "{{ {'role': m.role, 'n': parts | length} | tojson }}{{ parts[-1].lstrip('\\n') }}"
    "{%- if not loop.last and m.content.startswith('x') -%}{{ loop.index }}{%- endif -%}{%- endfor -%}",
    "{% set ns = namespace(last='') %}{% for m in messages[::-1] %}{% if m.role != 'tool' %}"
    "{% set ns.last = m.content %}{% endif %}{% endfor %}{% macro show(x) %}({{ x | replace('a', 'b') }}){% endmacro %}"
    "{{ show(ns.last) }}{{ messages | map(attribute='role') | join(',') }}",
};

struct Texts {
  Texts() {
    const char* path = std::getenv("COPPICE_MODEL");
    if (path == nullptr) finding("COPPICE_MODEL names no GGUF file");
    vocabulary = std::make_shared<const text::Vocabulary>(path);
    tokenizer = std::make_unique<text::PromptTokenizer>(vocabulary, 1 << 20);
    for (const char* source : kTemplates) templates.push_back(std::make_unique<text::ChatTemplate>(vocabulary, source));
  }
  std::shared_ptr<const text::Vocabulary> vocabulary;
  std::unique_ptr<text::PromptTokenizer> tokenizer;
  std::vector<std::unique_ptr<text::ChatTemplate>> templates;
};

std::vector<text::ChatMessage> messages_of(std::string_view rest) {
  constexpr char kSeparator = '\x1e';
  std::vector<text::ChatMessage> messages;
  const auto field = [&rest] {
    const std::size_t end = std::min(rest.find(kSeparator), rest.size());
    std::string text = text::to_utf8(rest.substr(0, end));  // JSON brings nothing else
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return text;
  };
  do {
    std::string role = field();
    messages.push_back({role.empty() ? "user" : std::move(role), field()});
  } while (!rest.empty() && messages.size() < 64);
  return messages;
}

const Texts& texts() {
  static const Texts loaded;
  return loaded;
}

void run(unsigned first, std::string_view rest) {
  std::string prompt;
  try {
    prompt = texts().templates[(first >> 1U) % kTemplates.size()]->render(
        messages_of(rest), (first & 0x80U) != 0 ? text::TurnEnd::kContinue
                           : (first & 1U) != 0  ? text::TurnEnd::kOpenTurn
                                                : text::TurnEnd::kClosed);
  } catch (const text::TemplateError& e) {
    if (e.what()[0] == '\0') finding("a refusal without a reason");
    return;
  }
  const auto tokens = texts().vocabulary->tokenize(prompt, false, true);
  for (const kv::Token token : tokens)
    if (token < 0 || token >= texts().vocabulary->size()) finding("a token that does not exist");
  texts().vocabulary->detokenize(tokens, true);  // not always the prompt again: some vocabularies lack some bytes

  std::string text;  // long enough to be cut
  while (text.size() < 3 * text::PromptTokenizer::kPieceBytes) text += prompt + " more";
  if (texts().tokenizer->tokenize(text, "") != texts().vocabulary->tokenize(text, true, true))
    finding("pieces of a text have other tokens than the text");
}

}  // namespace
}  // namespace coppice::testing

/// The model takes longer to load under sanitizers than libFuzzer lets an input take.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  coppice::testing::texts();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  coppice::testing::run(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
