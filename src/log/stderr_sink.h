// Where the server's log goes: standard error, without ever waiting for who reads it.
//
// A pipe's reader that lives and doesn't read (a stopped pager, a journal that hangs) would stop each thread that logs.
// So a line that can't be written at once is lost and counted, and the next one that can be says how many were.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <cstdint>
#include <mutex>
#include <string_view>

namespace coppice::log {

/// Thread safe. A line has at most 4,000 bytes, which a pipe takes at once: a longer one is cut. What foreign text in
/// it could do to a terminal or to a reader of lines is escaped (one_line.h).
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// `fd`: another descriptor than standard error, for tests.
  explicit StderrSink(int fd = 2);

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  bool write_now(std::string_view line);

  int fd_;
  bool colours_;
  std::uint64_t lost_ = 0;
};

}  // namespace coppice::log
