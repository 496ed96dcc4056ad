#include "text/answer_format.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/answer_format_impl.h"

namespace coppice::text {

namespace {

/// A text is read again when it has grown by this part of itself.
constexpr std::size_t kPart = 32;

/// What `now` has more than `told`, which becomes the same. Empty if it isn't more of the same: then it is read otherwise than it
/// seemed before, and what was told stays.
std::string more_of(std::string& told, const std::string& now) {
  if (!now.starts_with(told)) return "";
  std::string more = now.substr(told.size());
  told = now;
  return more;
}

}  // namespace

AnswerFormat::AnswerFormat(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
AnswerFormat::~AnswerFormat() = default;

struct AnswerReader::State {
  explicit State(const ThoughtTags& tags) {
    if (!tags.end.empty()) thoughts.emplace(tags);
  }

  struct Call {
    bool named = false;
    std::string arguments;
  };
  std::optional<ThoughtSplitter> thoughts;  ///< in place of the parser
  // What was passed on so far.
  std::string content, reasoning;
  std::vector<Call> calls;

  /// A name may still grow until something follows it.
  AnswerParts more(const common_chat_msg& now, bool whole) {
    AnswerParts parts{
        .content = more_of(content, now.content), .reasoning = more_of(reasoning, now.reasoning_content), .calls = {}};
    if (calls.size() < now.tool_calls.size()) calls.resize(now.tool_calls.size());
    for (std::size_t i = 0; i < now.tool_calls.size(); ++i) {
      const common_chat_tool_call& call = now.tool_calls[i];
      CallPart part{.index = i, .id = {}, .name = {}, .arguments = more_of(calls[i].arguments, call.arguments)};
      if (!calls[i].named) {
        if (call.name.empty() || (part.arguments.empty() && i + 1 == now.tool_calls.size() && !whole)) continue;
        part.name = call.name;
        part.id = call.id;
        calls[i].named = true;
      }
      if (!part.name.empty() || !part.arguments.empty()) parts.calls.push_back(std::move(part));
    }
    return parts;
  }
};

AnswerReader::AnswerReader(std::shared_ptr<const AnswerFormat> format)
    : format_(std::move(format)), state_(std::make_unique<State>(format_->impl().thoughts)) {}
AnswerReader::~AnswerReader() = default;
AnswerReader::AnswerReader(AnswerReader&&) noexcept = default;

AnswerParts AnswerReader::push(std::string_view text) {
  if (state_->thoughts) return state_->thoughts->push(text);
  text_ += text;
  if (text_.size() < next_) return {};
  next_ = text_.size() + std::max<std::size_t>(1, text_.size() / kPart);
  return read(false);
}

AnswerParts AnswerReader::finish() {
  if (state_->thoughts) return state_->thoughts->finish();
  return read(true);
}

AnswerParts AnswerReader::read(bool whole) {
  try {
    return state_->more(common_chat_parse(text_, !whole, format_->impl().params), whole);
  } catch (const std::exception&) {  // no such form
    if (!whole || !state_->calls.empty()) return {};
    return {.content = more_of(state_->content, text_), .reasoning = {}, .calls = {}};
  }
}

}  // namespace coppice::text
