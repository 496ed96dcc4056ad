#include "text/chat_template.h"

#include <chat.h>
#include <fmt/format.h>
#include <llama.h>

#include "text/chat_template_impl.h"
#include "text/llama_log.h"

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

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<const Vocabulary> vocabulary, const std::string& override_source)
    : vocabulary_(std::move(vocabulary)), impl_(std::make_unique<Impl>()) {
  route_llama_log();
  try {
    impl_->templates = common_chat_templates_init(vocabulary_->model(), override_source);
  } catch (const std::exception&) {
    const char* own = llama_model_chat_template(vocabulary_->model(), nullptr);
    throw TemplateError(fmt::format("chat template: {}",
                                    parse_error(override_source.empty() && own != nullptr ? own : override_source)));
  }
}

ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::source() const {
  return common_chat_templates_source(impl_->templates.get());
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, TurnEnd end) const {
  if (end == TurnEnd::kContinue)
    return render(messages.first(messages.size() - 1), TurnEnd::kOpenTurn) + messages.back().content;
  common_chat_templates_inputs inputs;
  inputs.add_generation_prompt = end == TurnEnd::kOpenTurn;
  inputs.use_jinja = true;
  // Only the prompt is wanted: making a parser for tool calls out of the template would take six times as long.
  inputs.force_pure_content = true;
  inputs.messages.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    common_chat_msg& m = inputs.messages.emplace_back();
    m.role = message.role;
    m.content = message.content;
  }
  try {
    const std::lock_guard lock(impl_->mutex);
    return common_chat_templates_apply(impl_->templates.get(), inputs).prompt;
  } catch (const std::exception& e) {
    throw TemplateError(fmt::format("chat template: {}", e.what()));
  }
}

}  // namespace coppice::text
