#include "text/answer_format.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/answer_format_impl.h"

namespace coppice::text {

namespace {

/// A text is read again when it has grown by this part of itself.
constexpr std::size_t kPart = 32;

/// What `now` has more than `told`, which becomes the same. Empty if it isn't more of the same: then it is read
/// otherwise than it seemed before, and what was told stays.
std::string more_of(std::string& told, const std::string& now) {
  if (!now.starts_with(told)) return "";
  std::string more = now.substr(told.size());
  told = now;
  return more;
}

/// Bytes of the longest beginning of `mark` with which the text ends.
std::size_t begun_at_end(std::string_view text, std::string_view mark) {
  std::size_t n = std::min(mark.size(), text.size());
  while (!text.ends_with(mark.substr(0, n))) --n;
  return n;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == text.npos;
}

/// Templates put a line's end behind the mark that begins thoughts.
std::string without_blank_begin(std::string text) {
  text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return text;
}

bool is_object(const std::string& text) {
  const common_json value = common_json::parse_no_throw(text);
  return !value.is_discarded() && value.is_object();
}

}  // namespace

AnswerFormat::AnswerFormat(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
AnswerFormat::~AnswerFormat() = default;

struct AnswerReader::Parsed {
  explicit Parsed(const AnswerFormat::Impl& format) {
    if (!format.thoughts.end.empty()) thoughts.emplace(format.thoughts);
    if (format.continued) skip_begun(format);
    marks = {format.text, format.text_end};
  }

  void skip_begun(const AnswerFormat::Impl& format) try {
    const common_chat_msg begun = common_chat_parse("", true, format.params);
    content = begun.content;
    reasoning = without_blank_begin(begun.reasoning_content);
  } catch (const std::exception&) {  // it can't be told
  }

  struct Call {
    bool named = false;
    std::string arguments;
  };
  std::optional<ThoughtSplitter> thoughts;
  std::pair<std::string, std::string> marks;  ///< around the text
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
    AnswerParts parts = texts(now, whole);
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

  /// White space alone is told where no call can follow it any more: before a call it is part of the form.
  AnswerParts texts(const common_chat_msg& now, bool whole) {
    std::string text = without_marks(now.content, whole);
    if (is_blank(text) && (!whole || !now.tool_calls.empty())) text.clear();
    return {.content = more_of(content, text),
            .reasoning = more_of(reasoning, without_blank_begin(now.reasoning_content)),
            .calls = {}};
  }

  /// Not `whole`: without what may become a mark, too.
  std::string without_marks(std::string text, bool whole) const {
    const auto& [begin, end] = marks;
    if (begin.empty()) return text;
    if (text.starts_with(begin)) {
      text.erase(0, begin.size());
    } else if (!whole && begin.starts_with(text)) {
      text.clear();
    }
    const std::size_t n = begun_at_end(text, end);
    if (n == end.size() || !whole) text.resize(text.size() - n);
    return text;
  }
};

AnswerReader::AnswerReader(std::shared_ptr<const AnswerFormat> format, bool held)
    : format_(std::move(format)), parsed_(std::make_unique<Parsed>(format_->impl())), held_(held) {}
AnswerReader::~AnswerReader() = default;
AnswerReader::AnswerReader(AnswerReader&&) noexcept = default;

AnswerParts AnswerReader::push(std::string_view text) {
  if (parsed_->thoughts) return read_behind(parsed_->thoughts->push(text), false);
  text_ += text;
  if (text_.size() < next_) return {};
  next_ = text_.size() + std::max<std::size_t>(1, text_.size() / kPart);
  return read(false);
}

AnswerParts AnswerReader::finish() {
  if (parsed_->thoughts) return read_behind(parsed_->thoughts->finish(), true);
  return read(true);
}

/// The parser reads what the thoughts leave.
AnswerParts AnswerReader::read_behind(AnswerParts&& split, bool whole) {
  if (format_->impl().params.parser.empty()) return std::move(split);
  text_ += split.content;
  if (!whole && text_.size() < next_) return {.content = {}, .reasoning = std::move(split.reasoning), .calls = {}};
  next_ = text_.size() + std::max<std::size_t>(1, text_.size() / kPart);
  AnswerParts parts = read(whole);
  parts.reasoning.insert(0, split.reasoning);
  return parts;
}

AnswerParts AnswerReader::read(bool whole) {
  try {
    common_chat_msg now = common_chat_parse(text_, !whole, format_->impl().params);
    if (const bool second = now.tool_calls.size() > 1; second && format_->impl().one_call) now.tool_calls.resize(1);
    if (held_) return parsed_->more(now, whole);
    AnswerParts parts = parsed_->texts(now, whole);
    if (!parsed_->whole_calls(now, whole, parts) && whole) parts.content += unread();
    return parts;
  } catch (const std::exception&) {  // no such form
    if (!whole) return {};
    if (!parsed_->calls.empty()) return {.content = {}, .reasoning = {}, .calls = {}, .cut = held_};
    return {.content = more_of(parsed_->content, text_), .reasoning = {}, .calls = {}};
  }
}

/// What stands behind the texts and calls that were told, as far as these are found in the text.
std::string AnswerReader::unread() const {
  std::size_t from = 0;
  const auto skip = [&](const std::string& told) {
    if (const std::size_t at = told.empty() ? text_.npos : text_.find(told, from); at != text_.npos)
      from = at + told.size();
  };
  skip(parsed_->reasoning);
  skip(parsed_->content);
  for (const Parsed::Call& call : parsed_->calls) skip(call.arguments);
  return text_.substr(from);
}

}  // namespace coppice::text
