#include "text/chat_template.h"

#include <chat.h>
#include <fmt/format.h>
#include <llama.h>

#include "text/chat_template_impl.h"
#include "text/llama_log.h"
#include "text/template_limits.h"
#include "text/tool_chat.h"

namespace coppice::text {

namespace {

/// common_chat_templates_init() throws a sliced std::exception: parse once more for the reason.
std::string parse_error(const std::string& source) {
  try {
    const common_chat_template parsed(source, "", "");
    return "the template cannot be used";
  } catch (const std::exception& e) {
    return e.what();
  }
}

/// Those that will be parsed.
void check_sources(const llama_model* model, const std::string& override_source) {
  std::vector<std::string> sources = {override_source};
  if (override_source.empty())
    for (const char* variant : {static_cast<const char*>(nullptr), "tool_use"})
      if (const char* own = llama_model_chat_template(model, variant)) sources.emplace_back(own);
  try {
    for (const std::string& source : sources) check_template(source);
  } catch (const std::exception& e) {
    throw TemplateError(fmt::format("chat template: {}", e.what()));
  }
}

}  // namespace

TemplateError template_fault(std::string_view engine_says) {
  constexpr std::string_view kRefusal = "Jinja Exception: ", kFault = "\nError: ", kWhere = " at line ",
                             kSource = " in source";
  if (const auto at = engine_says.rfind(kRefusal); at != engine_says.npos) {
    const std::string_view reason = engine_says.substr(at + kRefusal.size());
    return TemplateError(reason.empty() ? "it gives no reason" : std::string(reason));
  }
  const auto fault = engine_says.rfind(kFault), where = engine_says.find(kWhere), source = engine_says.find(kSource);
  if (fault == engine_says.npos || where == engine_says.npos || source == engine_says.npos || source < where)
    return TemplateError(fmt::format("chat template: {}", engine_says));
  return TemplateError(fmt::format("chat template: {} ({})", engine_says.substr(fault + kFault.size()),
                                   engine_says.substr(where + 4, source - where - 4)));
}

ChatTemplate::ChatTemplate(std::shared_ptr<const Vocabulary> vocabulary, const std::string& override_source,
                           ChatDefaults defaults)
    : vocabulary_(std::move(vocabulary)), defaults_(std::move(defaults)), impl_(std::make_unique<Impl>()) {
  route_llama_log();
  check_sources(vocabulary_->model(), override_source);
  const TemplateWork work(TemplateWork::At::kLoad);
  try {
    impl_->templates = common_chat_templates_init(vocabulary_->model(), override_source);
  } catch (const std::exception&) {
    const char* own = llama_model_chat_template(vocabulary_->model(), nullptr);
    if (work.ended() != nullptr) throw TemplateError(fmt::format("chat template: {}", work.ended()));
    throw template_fault(parse_error(override_source.empty() && own != nullptr ? own : override_source));
  }
  impl_->assumed = override_source.empty() && llama_model_chat_template(vocabulary_->model(), nullptr) == nullptr;
  impl_->writer = std::make_unique<const PromptWriter>(*vocabulary_, *impl_->templates, defaults_.names_in_content);
  impl_->marks =
      vocabulary_->specials().only([](std::string_view, const SpecialNames::Special& s) { return !s.in_text; });
  find_thoughts();
  find_call_ids();
  find_turns();
  find_untyped();
  // It was tried with many a conversation, and what failed was passed over.
  if (work.ended() != nullptr) throw TemplateError(fmt::format("chat template: {}", work.ended()));
}

ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::source() const {
  return common_chat_templates_source(impl_->templates.get());
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, TurnEnd end) const {
  return render(ToolChat{.messages = messages, .end = end}).prompt;
}

}  // namespace coppice::text
