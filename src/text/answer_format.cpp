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

bool is_object(const std::string& text) {
  const common_json value = common_json::parse_no_throw(text);
  return !value.is_discarded() && value.is_object();
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

  /// Those that are ones, each whole. False: one isn't.
  bool whole_calls(const common_chat_msg& now, bool whole, AnswerParts& parts) {
    for (std::size_t i = calls.size(); i < now.tool_calls.size(); ++i) {
      const common_chat_tool_call& call = now.tool_calls[i];
      if (!whole && i + 1 == now.tool_calls.size()) return true;
      if (call.name.empty() || !is_object(call.arguments)) return false;
      calls.push_back({.named = true, .arguments = call.arguments});
      parts.calls.push_back({.index = i, .id = call.id, .name = call.name, .arguments = call.arguments});
    }
    return true;
  }

  /// A name may still grow until something follows it.
  AnswerParts more(const common_chat_msg& now, bool whole) {
    AnswerParts parts = texts(now);
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
    parts.cut = whole && !calls.empty() && !is_object(calls.back().arguments);
    return parts;
  }

  AnswerParts texts(const common_chat_msg& now) {
    return {
        .content = more_of(content, now.content), .reasoning = more_of(reasoning, now.reasoning_content), .calls = {}};
  }
};

AnswerReader::AnswerReader(std::shared_ptr<const AnswerFormat> format, bool held)
    : format_(std::move(format)), state_(std::make_unique<State>(format_->impl().thoughts)), held_(held) {}
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
    common_chat_msg now = common_chat_parse(text_, !whole, format_->impl().params);
    if (const bool second = now.tool_calls.size() > 1; second && format_->impl().one_call) now.tool_calls.resize(1);
    if (held_) return state_->more(now, whole);
    AnswerParts parts = state_->texts(now);
    if (!state_->whole_calls(now, whole, parts) && whole) parts.content += unread();
    return parts;
  } catch (const std::exception&) {  // no such form
    if (!whole) return {};
    if (!state_->calls.empty()) return {.content = {}, .reasoning = {}, .calls = {}, .cut = held_};
    return {.content = more_of(state_->content, text_), .reasoning = {}, .calls = {}};
  }
}

/// What stands behind the texts and calls that were told, as far as these are found in the text.
std::string AnswerReader::unread() const {
  std::size_t from = 0;
  const auto skip = [&](const std::string& told) {
    if (const std::size_t at = told.empty() ? text_.npos : text_.find(told, from); at != text_.npos)
      from = at + told.size();
  };
  skip(state_->reasoning);
  skip(state_->content);
  for (const State::Call& call : state_->calls) skip(call.arguments);
  return text_.substr(from);
}

}  // namespace coppice::text
