#include "tier/redis/resp.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>

namespace coppice::tier {

namespace {

constexpr std::size_t kLongestLine = 1024;
constexpr std::int64_t kLongestValue = 512LL << 20, kLongestList = 1 << 20;

void add_argument(std::string& out, std::string_view argument) {
  fmt::format_to(std::back_inserter(out), "${}\r\n{}\r\n", argument.size(), argument);
}

}  // namespace

void add_command(std::string& out, std::initializer_list<std::string_view> arguments) {
  fmt::format_to(std::back_inserter(out), "*{}\r\n", arguments.size());
  for (const std::string_view argument : arguments) add_argument(out, argument);
}

void add_set_head(std::string& out, std::string_view key, std::string_view seconds, std::size_t value_bytes) {
  // "SET key EX seconds value" is no command: the value comes third. SETEX has it last.
  fmt::format_to(std::back_inserter(out), "*4\r\n$5\r\nSETEX\r\n");
  add_argument(out, key);
  add_argument(out, seconds);
  fmt::format_to(std::back_inserter(out), "${}\r\n", value_bytes);
}

WireResult<void> ReplyReader::more() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_.size()) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const auto got = wire_.receive(std::span(buffer_).subspan(end_));
  if (!got) return std::unexpected(got.error());
  end_ += *got;
  return {};
}

WireResult<std::string> ReplyReader::line() {
  std::size_t looked = 0;
  for (;;) {
    const std::string_view there(reinterpret_cast<const char*>(buffer_.data()) + begin_, end_ - begin_);
    if (const auto end = there.find("\r\n", looked); end != std::string_view::npos) {
      std::string found(there.substr(0, end));
      begin_ += end + 2;
      return found;
    }
    if (there.size() > kLongestLine) return std::unexpected("doesn't speak Redis's protocol");
    looked = there.empty() ? 0 : there.size() - 1;
    if (const auto got = more(); !got) return std::unexpected(got.error());
  }
}

WireResult<Reply> ReplyReader::next() {
  const auto head = line();
  if (!head) return std::unexpected(head.error());
  const std::string_view rest = std::string_view(*head).substr(head->empty() ? 0 : 1);
  Reply reply;
  if (head->starts_with('+') || head->starts_with('-')) {
    reply.kind = head->starts_with('+') ? Reply::Kind::kText : Reply::Kind::kError;
    reply.text = rest;
    return reply;
  }
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), reply.number);
  const bool is_number = !rest.empty() && error == std::errc() && end == rest.data() + rest.size();
  const auto within = [&](std::int64_t most) { return reply.number >= -1 && reply.number <= most; };
  if (is_number && head->starts_with(':')) {
    reply.kind = Reply::Kind::kNumber;
  } else if (is_number && head->starts_with('$') && within(kLongestValue)) {
    reply.kind = reply.number < 0 ? Reply::Kind::kNothing : Reply::Kind::kValue;
  } else if (is_number && head->starts_with('*') && within(kLongestList)) {
    reply.kind = reply.number < 0 ? Reply::Kind::kNothing : Reply::Kind::kList;
  } else {
    return std::unexpected("doesn't speak Redis's protocol");
  }
  return reply;
}

WireResult<void> ReplyReader::value(std::span<std::byte> into) {
  const std::size_t there = std::min(into.size(), end_ - begin_);
  std::memcpy(into.data(), buffer_.data() + begin_, there);
  begin_ += there;
  into = into.subspan(there);
  while (!into.empty()) {
    const auto got = wire_.receive(into);
    if (!got) return std::unexpected(got.error());
    into = into.subspan(*got);
  }
  return end_of_value();
}

WireResult<void> ReplyReader::skip_value(std::int64_t bytes) {
  auto left = static_cast<std::size_t>(bytes);
  while (left > 0) {
    if (begin_ == end_) {
      if (const auto got = more(); !got) return got;
    }
    const std::size_t there = std::min(left, end_ - begin_);
    begin_ += there;
    left -= there;
  }
  return end_of_value();
}

WireResult<std::string> ReplyReader::short_value(std::int64_t bytes, std::size_t most) {
  if (static_cast<std::uint64_t>(bytes) > most) return std::unexpected("doesn't speak Redis's protocol");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  if (const auto got = value(std::as_writable_bytes(std::span(text))); !got) return std::unexpected(got.error());
  return text;
}

WireResult<void> ReplyReader::end_of_value() {
  while (end_ - begin_ < 2) {
    if (const auto got = more(); !got) return got;
  }
  const bool ends = buffer_[begin_] == std::byte{'\r'} && buffer_[begin_ + 1] == std::byte{'\n'};
  begin_ += 2;
  if (!ends) return std::unexpected("doesn't speak Redis's protocol");
  return {};
}

}  // namespace coppice::tier
