#include "log/stderr_sink.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cstddef>
#include <string>

#include "log/one_line.h"

namespace coppice::log {

namespace {

constexpr std::size_t kLongestLine = 4000;  // below PIPE_BUF

std::string_view colour_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return "\033[36m";
    case spdlog::level::info:
      return "\033[32m";
    case spdlog::level::warn:
      return "\033[33m\033[1m";
    case spdlog::level::err:
      return "\033[31m\033[1m";
    case spdlog::level::critical:
      return "\033[1m\033[41m";
    default:
      return "";
  }
}

}  // namespace

StderrSink::StderrSink(int fd) : fd_(fd), colours_(isatty(fd) == 1) {}

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  const std::string text = one_line({message.payload.data(), message.payload.size()});
  spdlog::details::log_msg escaped = message;
  escaped.payload = text;
  spdlog::memory_buf_t formatted;
  formatter_->format(escaped, formatted);
  std::string line(formatted.data(), formatted.size());
  if (line.size() > kLongestLine) {
    std::size_t end = kLongestLine - 8;
    while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80) --end;  // not within a character
    line.resize(end);
    line += "...\n";
  }
  if (colours_ && escaped.color_range_end > escaped.color_range_start) {
    line.insert(escaped.color_range_end, "\033[m");
    line.insert(escaped.color_range_start, colour_of(message.level));
  }
  if (lost_ > 0) {
    if (!write_now(fmt::format("coppice: {} lines of the log were lost: their reader was slow\n", lost_))) {
      ++lost_;
      return;
    }
    lost_ = 0;
  }
  if (!write_now(line)) ++lost_;
}

/// A pipe that has room takes PIPE_BUF bytes without waiting; a file always does.
bool StderrSink::write_now(std::string_view line) {
  pollfd out{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return false;
  return write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

}  // namespace coppice::log
