#include "text/prompt_writer.h"

#include <llama.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string_view>

#include "text/template_inputs.h"

namespace coppice::text {

namespace {

/// The vertical bar of East Asian width, in which DeepSeek writes names of tokens.
constexpr std::string_view kWideBar = "\xef\xbd\x9c";

/// Does it look like a mark? Some vocabularies have tokens of plain text (runs of blanks, tags of HTML), which are
/// found in any text.
bool looks_like_mark(std::string_view name) {
  const auto is_sign = [](char c) { return std::ispunct(static_cast<unsigned char>(c)) != 0; };
  const bool begins = is_sign(name.front()) || name.starts_with(kWideBar);
  const bool ends = is_sign(name.back()) || name.ends_with(kWideBar);
  return name.size() > 2 && begins && ends &&
         std::ranges::any_of(name, [](char c) { return c == '|' || std::isalpha(static_cast<unsigned char>(c)) != 0; });
}

/// Names that the client's text can't make a token: of control tokens, and of others that the template writes as marks.
SpecialNames marks_of(const Vocabulary& vocabulary, const std::string& source) {
  return vocabulary.specials().only([&](std::string_view name, const SpecialNames::Special& special) {
    if (!special.in_text) return true;
    const bool barred = name.starts_with("<|") && name.ends_with("|>");
    return looks_like_mark(name) && (barred || source.find(name) != std::string::npos);
  });
}

/// The places of names that have a byte of a span.
std::vector<TextSpan> names_in(std::string_view text, const std::vector<TextSpan>& spans, const SpecialNames& names) {
  std::vector<TextSpan> found;
  const std::size_t reach = std::max<std::size_t>(names.longest(), 1) - 1;
  for (const TextSpan& span : spans) {
    std::size_t at = span.begin - std::min(span.begin, reach);
    if (!found.empty()) at = std::max(at, found.back().begin + 1);
    const std::string_view window = text.substr(0, span.end + reach);
    while (const auto name = names.find(window, at)) {
      if (name->begin >= span.end) break;
      if (name->end > span.begin) found.push_back({name->begin, name->end});
      at = name->begin + 1;
    }
  }
  return found;
}

void cut(MarkedText& prompt, std::size_t end) {
  prompt.text.resize(end);
  std::erase_if(prompt.plain, [end](const TextSpan& span) { return span.end > end; });
}

bool is_blank(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
}

}  // namespace

PromptWriter::PromptWriter(const Vocabulary& vocabulary, const common_chat_templates& templates, bool names_in_content)
    : names_in_content_(names_in_content) {
  const llama_vocab* vocab = llama_model_get_vocab(vocabulary.model());
  adds_bos_ = llama_vocab_get_add_bos(vocab);
  adds_eos_ = llama_vocab_get_add_eos(vocab);
  const auto made = [&](const std::string& source) {
    return std::make_unique<MarkedTemplate>(source, vocabulary.bos(), vocabulary.eos(), marks_of(vocabulary, source));
  };
  own_ = made(common_chat_templates_source(&templates));
  const std::string for_tools = common_chat_templates_source(&templates, "tool_use");
  if (!for_tools.empty()) for_tools_ = made(for_tools);
}

const MarkedTemplate& PromptWriter::template_for(const common_chat_templates_inputs& inputs) const {
  return for_tools_ && !inputs.tools.empty() ? *for_tools_ : *own_;
}

MarkedTemplate::Rendered PromptWriter::render(const common_chat_templates_inputs& inputs, Origin origin,
                                              std::span<const std::string> quoted,
                                              std::optional<common_chat_params>* special) const {
  const auto library = [&](const common_chat_template& its_template) {
    return template_prompt(its_template, inputs, adds_bos_, adds_eos_, special);
  };
  return template_for(inputs).render(origin, library, quoted);
}

MarkedText PromptWriter::marked(const common_chat_templates_inputs& inputs, MarkedTemplate::Rendered rendered) const {
  MarkedText prompt{.text = std::move(rendered.text), .plain = {}};
  if (!names_in_content_) prompt.plain = names_in(prompt.text, rendered.marked, template_for(inputs).names());
  return prompt;
}

MarkedText PromptWriter::write(const common_chat_templates_inputs& inputs, std::span<const std::string> quoted,
                               std::optional<common_chat_params>* special) const {
  return marked(inputs, render(inputs, Origin::kClient, quoted, special));
}

PromptWriter::Continued PromptWriter::write_continued(const common_chat_templates_inputs& inputs,
                                                      std::span<const std::string> quoted) const {
  const common_chat_msg& last = inputs.messages.back();
  Origin origin = is_blank(last.content) ? Origin::kLastReasoning : Origin::kLastContent;
  common_chat_templates_inputs whole = inputs;
  std::vector<TextSpan> text = render(whole, origin).marked;
  std::size_t end = text.empty() ? 0 : text.back().end;
  if (text.empty()) {  // there is none, or the template doesn't write it: where content would begin
    if (!is_blank(last.content)) throw std::runtime_error("the message that goes on is not in its prompt");
    whole.messages.back().content = "0";
    text = render(whole, Origin::kLastContent).marked;
    if (text.empty()) throw std::runtime_error("the message that goes on is not in its prompt");
    end = text.front().begin;
  }
  MarkedTemplate::Rendered rendered = render(whole, Origin::kClient, quoted);
  std::size_t begin = 0;
  for (const TextSpan& span : rendered.marked)
    if (span.end <= end) begin = span.end;
  Continued result{.prompt = marked(whole, std::move(rendered)), .opening = {}};
  cut(result.prompt, end);
  result.opening = result.prompt.text.substr(begin);
  return result;
}

std::string PromptWriter::opening(common_chat_templates_inputs inputs, const std::string& prompt) const {
  inputs.add_generation_prompt = false;
  const std::string closed = render(inputs, Origin::kClient).text;
  const auto same = std::ranges::mismatch(prompt, closed).in1;
  return {same, prompt.end()};
}

}  // namespace coppice::text
